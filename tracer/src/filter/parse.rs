//! Reads an expression.

use std::ops::Range;

use tracer_common::filter::End;

use super::error::FilterError;
use super::expr::Expr;
use super::lex::{Kind as TokenKind, Token, lex};
use super::qualifiers::{Direction, Kind, Protocol, Qualifiers};
use super::value::is_address;

/// How deep parentheses and negations may be nested.
const DEPTH_MAX: usize = 32;

/// How many conditions an expression may have. Far more than a program can hold, unless they repeat themselves.
const CONDITIONS_MAX: usize = 256;

/// The words of the language.
const KEYWORDS: [&str; 16] = [
    "host",
    "net",
    "port",
    "portrange",
    "src",
    "dst",
    "tcp",
    "udp",
    "icmp",
    "icmp6",
    "ip",
    "ip6",
    "vni",
    "and",
    "or",
    "not",
];

/// Words of tcpdump's language that this one lacks.
const TCPDUMP_ONLY: [&str; 20] = [
    "arp",
    "broadcast",
    "ether",
    "gateway",
    "geneve",
    "greater",
    "inbound",
    "len",
    "less",
    "mpls",
    "multicast",
    "outbound",
    "pppoes",
    "proto",
    "protochain",
    "rarp",
    "sctp",
    "vlan",
    "vxlan",
    "wlan",
];

pub(super) struct Parser<'a> {
    expression: &'a str,
    tokens: Vec<Token<'a>>,
    position: usize,
    /// The qualifiers of the last value, which the next one takes if it has none.
    recent: Qualifiers,
    depth: usize,
    conditions: usize,
}

/// Reads an expression; `None` if there is nothing in it.
pub(super) fn parse(expression: &str) -> Result<Option<Expr>, FilterError> {
    let mut parser = Parser {
        expression,
        tokens: lex(expression),
        position: 0,
        recent: Qualifiers::default(),
        depth: 0,
        conditions: 0,
    };
    if parser.peek().kind == TokenKind::End {
        return Ok(None);
    }
    let expr = parser.expression()?;
    let rest = parser.peek().clone();
    match rest.kind {
        TokenKind::End => Ok(Some(expr)),
        TokenKind::Close => Err(parser.error(&rest.span, "there is no `(` for this `)`", None)),
        _ => {
            let message = format!("`and` or `or` is missing before `{}`", rest.text);
            Err(parser.error(&rest.span, message, None))
        }
    }
}

impl<'a> Parser<'a> {
    pub(super) fn peek(&self) -> &Token<'a> {
        // The end is never passed, since `next` does not move beyond it.
        &self.tokens[self.position]
    }

    pub(super) fn next(&mut self) -> Token<'a> {
        let token = self.peek().clone();
        if token.kind != TokenKind::End {
            self.position += 1;
        }
        token
    }

    pub(super) fn error(
        &self,
        span: &Range<usize>,
        message: impl Into<String>,
        hint: Option<String>,
    ) -> FilterError {
        FilterError {
            expression: self.expression.to_owned(),
            span: span.clone(),
            message: message.into(),
            hint,
        }
    }

    /// Conditions joined from left to right: `and` binds no tighter than `or`, as in tcpdump.
    fn expression(&mut self) -> Result<Expr, FilterError> {
        let mut left = self.condition()?;
        loop {
            let join = match self.peek().kind {
                TokenKind::And => Expr::and,
                TokenKind::Or => Expr::or,
                _ => return Ok(left),
            };
            self.next();
            left = join(left, self.condition()?);
        }
    }

    fn condition(&mut self) -> Result<Expr, FilterError> {
        let token = self.peek().clone();
        if self.depth == DEPTH_MAX {
            let message = format!("nested more than {DEPTH_MAX} deep");
            return Err(self.error(&token.span, message, None));
        }
        self.conditions += 1;
        if self.conditions > CONDITIONS_MAX {
            let message = format!("too large: more than {CONDITIONS_MAX} conditions");
            return Err(self.error(&token.span, message, None));
        }
        self.depth += 1;
        let condition = match token.kind {
            TokenKind::Not => {
                self.next();
                self.condition()?.negate()
            }
            TokenKind::Open => {
                self.next();
                let inside = self.expression()?;
                let close = self.next();
                match close.kind {
                    TokenKind::Close => inside,
                    TokenKind::End => {
                        return Err(self.error(&token.span, "this `(` is never closed", None));
                    }
                    _ => {
                        let message =
                            format!("`and`, `or` or `)` is missing before `{}`", close.text);
                        return Err(self.error(&close.span, message, None));
                    }
                }
            }
            TokenKind::Word => self.primitive()?,
            TokenKind::End => {
                return Err(self.error(&token.span, "a condition is missing at the end", None));
            }
            TokenKind::And | TokenKind::Or | TokenKind::Close => {
                let message = format!("a condition is missing before `{}`", token.text);
                return Err(self.error(&token.span, message, None));
            }
        };
        self.depth -= 1;
        Ok(condition)
    }

    fn primitive(&mut self) -> Result<Expr, FilterError> {
        let mut qualifiers = Qualifiers::default();
        let first = self.peek().clone();
        if let Some(protocol) = Protocol::of_word(first.text) {
            self.next();
            qualifiers.protocol = Some(protocol);
        }
        qualifiers.direction = self.direction();
        if let Some(kind) = Kind::of_word(self.peek().text) {
            self.next();
            qualifiers.kind = Some(kind);
        }
        match qualifiers {
            Qualifiers {
                kind: Some(kind), ..
            } => {
                self.check_qualifiers(qualifiers, kind, &first)?;
                self.recent = qualifiers;
                match self.peek().kind {
                    // `port (80 or 443)`: the values in the parentheses take the qualifiers.
                    TokenKind::Open => self.condition(),
                    TokenKind::Word => self.value(qualifiers, kind),
                    _ => Err(self.missing_value(kind.value())),
                }
            }
            Qualifiers {
                direction: Some(_), ..
            } => {
                if self.peek().kind != TokenKind::Word {
                    return Err(
                        self.missing_value("an address, or `host`, `net`, `port` or `portrange`")
                    );
                }
                self.recent = qualifiers;
                self.address(qualifiers)
            }
            Qualifiers {
                protocol: Some(protocol),
                ..
            } => Ok(protocol.expr()),
            Qualifiers {
                protocol: None,
                direction: None,
                kind: None,
            } => self.bare_value(),
        }
    }

    /// `src`, `dst`, `src or dst` or `src and dst`.
    fn direction(&mut self) -> Option<Direction> {
        let end = |word: &str| match word {
            "src" => Some(End::Source),
            "dst" => Some(End::Destination),
            _ => None,
        };
        let first = end(self.peek().text)?;
        self.next();
        let join = self.peek().kind;
        let second = self
            .tokens
            .get(self.position + 1)
            .and_then(|token| end(token.text));
        let both = second.is_some_and(|second| second != first);
        match join {
            TokenKind::Or if both => {
                self.position += 2;
                Some(Direction::One(End::Either))
            }
            TokenKind::And if both => {
                self.position += 2;
                Some(Direction::Both)
            }
            _ => Some(Direction::One(first)),
        }
    }

    /// Refuses qualifiers that contradict the kind of the value.
    fn check_qualifiers(
        &self,
        qualifiers: Qualifiers,
        kind: Kind,
        first: &Token,
    ) -> Result<(), FilterError> {
        let message = match (kind, qualifiers) {
            (
                Kind::Port | Kind::PortRange,
                Qualifiers {
                    protocol: Some(Protocol::Icmp | Protocol::Icmp6),
                    ..
                },
            ) => "ICMP has no ports",
            (
                Kind::Vni,
                Qualifiers {
                    direction: Some(_), ..
                },
            ) => "a VNI has no direction",
            _ => return Ok(()),
        };
        let end = self.tokens[self.position - 1].span.end;
        Err(self.error(&(first.span.start..end), message, None))
    }

    fn missing_value(&self, expected: &str) -> FilterError {
        let token = self.peek();
        let message = if token.kind == TokenKind::End {
            format!("the expression ends where {expected} is expected")
        } else {
            format!("expected {expected} before `{}`", token.text)
        };
        self.error(&token.span, message, None)
    }

    /// A value without qualifiers: it takes those of the value before it, or is an address.
    fn bare_value(&mut self) -> Result<Expr, FilterError> {
        let token = self.peek().clone();
        let recent = self.recent;
        let is_number = token
            .text
            .starts_with(|character: char| character.is_ascii_digit());
        match recent.kind {
            Some(kind @ (Kind::Port | Kind::PortRange | Kind::Vni))
                if is_number && !is_address(token.text) =>
            {
                self.value(recent, kind)
            }
            Some(kind @ Kind::Net) if is_number || is_address(token.text) => {
                self.value(recent, kind)
            }
            _ if is_address(token.text) => {
                let qualifiers = match recent.kind {
                    Some(Kind::Host) | None => recent,
                    Some(_) => Qualifiers::default(),
                };
                self.recent = qualifiers;
                self.address(Qualifiers {
                    kind: None,
                    ..qualifiers
                })
            }
            _ if is_number => {
                let message = format!("`{}` alone says nothing", token.text);
                let hint = Some(format!("did you mean `port {}`?", token.text));
                Err(self.error(&token.span, message, hint))
            }
            _ => Err(self.unknown_word(&token)),
        }
    }

    fn unknown_word(&self, token: &Token) -> FilterError {
        let word = token.text;
        if word.contains(['[', ']', '=', '<', '>', '&', '|']) {
            let message = "a filter selects flows and cannot look into single packets";
            return self.error(&token.span, message, None);
        }
        if let "vxlan" | "geneve" = word {
            let hint = Some("use `vni N`".to_owned());
            return self.error(&token.span, format!("`{word}` is no condition here"), hint);
        }
        if TCPDUMP_ONLY.contains(&word) {
            let message = format!("tcpdump's `{word}` is no condition here");
            return self.error(&token.span, message, None);
        }
        let nearest = KEYWORDS
            .iter()
            .map(|keyword| (distance(&word.to_lowercase(), keyword), keyword))
            .filter(|(distance, keyword)| *distance <= 2 && *distance < keyword.len())
            .min_by_key(|(distance, _)| *distance);
        let hint = match nearest {
            Some((_, keyword)) => format!("did you mean `{keyword}`?"),
            None => "a name is not looked up: give its address".to_owned(),
        };
        self.error(&token.span, format!("unknown word `{word}`"), Some(hint))
    }
}

/// How many letters must be inserted, deleted or replaced to make one word of the other.
fn distance(word: &str, other: &str) -> usize {
    let mut row: Vec<usize> = (0..=other.chars().count()).collect();
    for (index, letter) in word.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = index + 1;
        for (column, other) in other.chars().enumerate() {
            let replaced = diagonal + usize::from(letter != other);
            diagonal = row[column + 1];
            row[column + 1] = replaced.min(row[column] + 1).min(diagonal + 1);
        }
    }
    row.last().copied().unwrap_or(0)
}
