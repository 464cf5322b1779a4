//! The grammar of `labelSelector`, token for token as apimachinery reads it, oddities included: `in` and `notin` are
//! names where a name is expected, and an empty place in a list is the empty value.

use super::{Operator, Requirement, SelectorError};

/// Parts of the text. Words keep their spelling because `in` may be a key or a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token<'a> {
    Word(&'a str),
    Symbol(&'static str),
    End,
}

impl Token<'_> {
    fn syntax(self, expected: &'static str) -> SelectorError {
        let found = match self {
            Token::Word(text) | Token::Symbol(text) => text,
            Token::End => "",
        };
        SelectorError::Syntax {
            found: found.to_owned(),
            expected,
        }
    }
}

/// Longest first, because the lexer is greedy.
const SYMBOLS: [&str; 9] = ["==", "!=", "=", "!", "(", ")", ",", ">", "<"];

/// All requirements of `text`, in order.
pub(super) fn parse(text: &str) -> Result<Vec<Requirement>, SelectorError> {
    let mut parser = Parser { rest: text };
    let mut requirements = Vec::new();
    if parser.peek()? == Token::End {
        return Ok(requirements);
    }
    loop {
        requirements.push(parser.requirement()?);
        match parser.next()? {
            Token::End => return Ok(requirements),
            Token::Symbol(",") => {}
            other => return Err(other.syntax("',' or the end")),
        }
    }
}

struct Parser<'a> {
    rest: &'a str,
}

impl<'a> Parser<'a> {
    fn next(&mut self) -> Result<Token<'a>, SelectorError> {
        let (token, rest) = lex(self.rest)?;
        self.rest = rest;
        Ok(token)
    }

    fn peek(&self) -> Result<Token<'a>, SelectorError> {
        lex(self.rest).map(|(token, _)| token)
    }

    fn requirement(&mut self) -> Result<Requirement, SelectorError> {
        let absent = self.peek()? == Token::Symbol("!");
        if absent {
            self.next()?;
        }
        let key = match self.next()? {
            Token::Word(key) => key,
            other => return Err(other.syntax("a label key or '!'")),
        };
        if absent {
            return Requirement::new(key, Operator::DoesNotExist, None::<String>);
        }
        if matches!(self.peek()?, Token::End | Token::Symbol(",")) {
            return Requirement::new(key, Operator::Exists, None::<String>);
        }
        let operator = match self.next()? {
            Token::Symbol("=" | "==") => Operator::In,
            Token::Symbol("!=") => Operator::NotIn,
            Token::Symbol(">") => Operator::GreaterThan,
            Token::Symbol("<") => Operator::LessThan,
            Token::Word("in") => return Requirement::new(key, Operator::In, self.list()?),
            Token::Word("notin") => return Requirement::new(key, Operator::NotIn, self.list()?),
            other => return Err(other.syntax("one of =, ==, !=, in, notin, >, <, ','")),
        };
        Requirement::new(key, operator, [self.value()?])
    }

    /// One value; absent means empty, as in `k=,other`.
    fn value(&mut self) -> Result<&'a str, SelectorError> {
        match self.peek()? {
            Token::End | Token::Symbol(",") => Ok(""),
            Token::Word(value) => self.next().map(|_| value),
            other @ Token::Symbol(_) => Err(other.syntax("a value")),
        }
    }

    /// `(a,b)`: places between commas, and an empty place is the empty value. So `()` is one empty value.
    fn list(&mut self) -> Result<Vec<&'a str>, SelectorError> {
        match self.next()? {
            Token::Symbol("(") => {}
            other => return Err(other.syntax("'('")),
        }
        let mut values = Vec::new();
        loop {
            values.push(match self.peek()? {
                Token::Word(value) => {
                    self.next()?;
                    value
                }
                Token::Symbol(_) | Token::End => "",
            });
            match self.next()? {
                Token::Symbol(",") => {}
                Token::Symbol(")") => return Ok(values),
                other => return Err(other.syntax("',' or ')'")),
            }
        }
    }
}

/// The first token of `text`, and what follows it.
fn lex(text: &str) -> Result<(Token<'_>, &str), SelectorError> {
    let text = text.trim_start_matches([' ', '\t', '\r', '\n']);
    if text.is_empty() {
        return Ok((Token::End, text));
    }
    if let Some(symbol) = SYMBOLS.into_iter().find(|symbol| text.starts_with(symbol)) {
        return Ok((Token::Symbol(symbol), &text[symbol.len()..]));
    }
    let end = text
        .find([' ', '\t', '\r', '\n', '=', '!', '(', ')', ',', '>', '<'])
        .unwrap_or(text.len());
    let (word, rest) = text.split_at(end);
    if word.contains('\0') {
        Err(Token::Word(word).syntax("no NUL"))
    } else {
        Ok((Token::Word(word), rest))
    }
}
