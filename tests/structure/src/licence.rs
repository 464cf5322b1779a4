//! Whether an SPDX licence expression can be met with licences from a list.

/// Whether `expression` holds when only the licences of `allowed` may be used. `/` is the old way to write `OR`.
pub fn is_met(expression: &str, allowed: &[String]) -> bool {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut reader = Reader { words: &words, allowed };
    reader.any() && reader.words.is_empty()
}

struct Reader<'a> {
    words: &'a [&'a str],
    allowed: &'a [String],
}

impl Reader<'_> {
    /// Terms joined by `OR`, which binds less than `AND`.
    fn any(&mut self) -> bool {
        let mut met = self.all();
        while self.take("OR") {
            met |= self.all();
        }
        met
    }

    fn all(&mut self) -> bool {
        let mut met = self.one();
        while self.take("AND") {
            met &= self.one();
        }
        met
    }

    fn one(&mut self) -> bool {
        if self.take("(") {
            let met = self.any();
            return self.take(")") && met;
        }
        let Some((first, rest)) = self.words.split_first() else {
            return false;
        };
        self.words = rest;
        if let ["WITH", exception, rest @ ..] = self.words {
            self.words = rest;
            return self.allowed.contains(&format!("{first} WITH {exception}"));
        }
        self.allowed.iter().any(|licence| licence == first)
    }

    fn take(&mut self, word: &str) -> bool {
        let next = self.words.first() == Some(&word);
        self.words = &self.words[usize::from(next)..];
        next
    }
}

#[cfg(test)]
mod tests {
    use super::is_met;

    #[test]
    fn expressions_are_read_as_spdx_says() {
        let allowed = ["MIT", "Apache-2.0", "Apache-2.0 WITH LLVM-exception"].map(str::to_owned);
        for good in [
            "MIT",
            "GPL-3.0 OR MIT",
            "MIT/GPL-3.0",
            "MIT AND Apache-2.0 OR GPL-3.0",
            "(GPL-3.0 OR MIT) AND Apache-2.0",
            "Apache-2.0 WITH LLVM-exception AND MIT",
        ] {
            assert!(is_met(good, &allowed), "{good}");
        }
        for bad in [
            "",
            "GPL-3.0",
            "GPL-3.0 OR",
            "MIT AND GPL-3.0",
            "(MIT OR GPL-3.0) AND GPL-3.0",
            "MIT WITH LLVM-exception",
            "(MIT",
            "MIT MIT",
        ] {
            assert!(!is_met(bad, &allowed), "{bad}");
        }
    }
}
