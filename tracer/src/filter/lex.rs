//! Words and signs of an expression.

use std::ops::Range;

/// What a token is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Word,
    And,
    Or,
    Not,
    Open,
    Close,
    /// The end of the expression.
    End,
}

/// A word or a sign.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Token<'a> {
    pub(super) kind: Kind,
    pub(super) text: &'a str,
    pub(super) span: Range<usize>,
}

/// Splits an expression; the last token is its end.
pub(super) fn lex(expression: &str) -> Vec<Token<'_>> {
    let mut tokens = Vec::new();
    let mut start = 0;
    while let Some(character) = expression[start..].chars().next() {
        if character.is_whitespace() {
            start += character.len_utf8();
            continue;
        }
        let len = sign_len(&expression[start..]).unwrap_or_else(|| word_len(&expression[start..]));
        let span = start..start + len;
        let text = &expression[span.clone()];
        let kind = match text {
            "and" | "&&" => Kind::And,
            "or" | "||" => Kind::Or,
            "not" | "!" => Kind::Not,
            "(" => Kind::Open,
            ")" => Kind::Close,
            _ => Kind::Word,
        };
        tokens.push(Token { kind, text, span });
        start += len;
    }
    tokens.push(Token {
        kind: Kind::End,
        text: "",
        span: start..start,
    });
    tokens
}

/// The length of the sign that the text starts with.
fn sign_len(text: &str) -> Option<usize> {
    ["&&", "||", "!", "(", ")"]
        .into_iter()
        .find(|sign| text.starts_with(sign))
        .map(str::len)
}

/// The length of the word that the text starts with: up to a blank or a sign.
fn word_len(text: &str) -> usize {
    text.char_indices()
        .find(|(index, character)| {
            character.is_whitespace() || (*index > 0 && sign_len(&text[*index..]).is_some())
        })
        .map_or(text.len(), |(index, _)| index)
}
