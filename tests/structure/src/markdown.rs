//! A page of Markdown as far as links, anchors and code need: not its rendering.

use std::collections::{BTreeMap, BTreeSet};

/// What a page names, each with the number of its line.
#[derive(Debug, Default)]
pub struct Page {
    /// Anchors of its headings, as GitHub makes them.
    pub anchors: BTreeSet<String>,
    /// Targets of its links.
    pub links: Vec<(usize, String)>,
    /// Its code spans, and the lines of its code blocks without a prompt.
    pub code: Vec<(usize, String)>,
}

/// Reads a page. A link's text and target stand on one line; a code span too.
pub fn read(text: &str) -> Page {
    let mut page = Page::default();
    let mut headings: BTreeMap<String, usize> = BTreeMap::new();
    let mut fenced = false;
    for (number, line) in (1..).zip(text.lines()) {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if fenced {
            let command = line.trim().trim_start_matches("$ ");
            page.code.push((number, command.to_owned()));
        } else {
            if let Some(heading) = heading(line) {
                let anchor = anchor(heading);
                let seen = headings.entry(anchor.clone()).or_default();
                let numbered = format!("{anchor}-{seen}");
                page.anchors.insert(if *seen == 0 { anchor } else { numbered });
                *seen += 1;
            }
            page.line(number, line);
        }
    }
    page
}

impl Page {
    /// Every other piece between backticks is code; links are looked for in the rest.
    fn line(&mut self, number: usize, line: &str) {
        for (index, piece) in line.split('`').enumerate() {
            if index % 2 == 1 {
                self.code.push((number, piece.to_owned()));
            }
        }
        let targets = line.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        self.links.extend(targets.map(|target| (number, target.to_owned())));
    }
}

fn heading(line: &str) -> Option<&str> {
    let text = line.trim_start_matches('#');
    (text.len() < line.len()).then(|| text.strip_prefix(' '))?
}

fn anchor(heading: &str) -> String {
    let kept = heading.trim().chars().filter_map(|letter| match letter {
        ' ' => Some('-'),
        '-' | '_' => Some(letter),
        _ => letter.is_alphanumeric().then_some(letter),
    });
    kept.collect::<String>().to_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn anchors_are_githubs() {
        let page = read("# The life of an agent's report\n## `make` it, twice\n## A\n## A\n#no heading\n");
        let anchors: Vec<_> = page.anchors.iter().map(String::as_str).collect();
        assert_eq!(anchors, ["a", "a-1", "make-it-twice", "the-life-of-an-agents-report"]);
    }

    #[test]
    fn links_and_code_have_their_lines() {
        let page = read("see [a](b.md#c) and\n`d/e` [f](g), `h`\n```console\n$ make i # [x](y)\n# no heading\n```\n");
        assert_eq!(page.links, [(1, "b.md#c".to_owned()), (2, "g".to_owned())]);
        let code: Vec<_> = page.code.iter().map(|(line, code)| (*line, code.as_str())).collect();
        assert_eq!(
            code,
            [(2, "d/e"), (2, "h"), (4, "make i # [x](y)"), (5, "# no heading")]
        );
        assert!(page.anchors.is_empty());
    }
}
