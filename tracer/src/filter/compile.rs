//! Compiles an expression to the alternative of conjunctions that the kernel half evaluates.

use tracer_common::filter::{CLAUSES_MAX, Clause, End, FilterProgram, TERMS_MAX, Term};

use super::error::FilterError;
use super::expr::Expr;

/// The most conjunctions at any step of the way.
const WORK_MAX: usize = 512;

/// The conjunctions, each a list of terms without repetition.
type Alternatives = Vec<Vec<Term>>;

/// An expression that does not fit into a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TooLarge {
    /// It has more alternatives than this; `None` if they were not all counted.
    Clauses(Option<usize>),
    /// One alternative has more than [`TERMS_MAX`] conditions.
    Terms,
}

impl TooLarge {
    pub(super) fn into_error(self, expression: &str) -> FilterError {
        let message = match self {
            Self::Clauses(Some(count)) => {
                format!(
                    "too large: it has {count} alternatives when written out, and {CLAUSES_MAX} are possible"
                )
            }
            Self::Clauses(None) => {
                format!(
                    "too large: it has hundreds of alternatives when written out, and {CLAUSES_MAX} are possible"
                )
            }
            Self::Terms => {
                format!("too large: more than {TERMS_MAX} conditions must hold together")
            }
        };
        FilterError {
            expression: expression.to_owned(),
            span: 0..expression.len(),
            message,
            hint: Some("a net or a portrange says more in one condition".to_owned()),
        }
    }
}

/// Compiles an expression.
pub(super) fn compile(expr: &Expr) -> Result<FilterProgram, TooLarge> {
    let mut alternatives = positive(expr)?;
    absorb(&mut alternatives);
    if alternatives.len() > CLAUSES_MAX {
        return Err(TooLarge::Clauses(Some(alternatives.len())));
    }
    let mut program = FilterProgram::ALL;
    program.len = alternatives.len() as u32;
    for (clause, terms) in program.clauses.iter_mut().zip(&alternatives) {
        *clause = compile_clause(terms)?;
    }
    Ok(program)
}

fn compile_clause(terms: &[Term]) -> Result<Clause, TooLarge> {
    let mut clause = Clause::UNUSED;
    clause.len = terms.len() as u32;
    let places = clause.terms.get_mut(..terms.len()).ok_or(TooLarge::Terms)?;
    places.copy_from_slice(terms);
    Ok(clause)
}

/// The alternatives of an expression.
fn positive(expr: &Expr) -> Result<Alternatives, TooLarge> {
    match expr {
        Expr::Term(term) => Ok(vec![vec![*term]]),
        Expr::And(left, right) => all_of(&positive(left)?, &positive(right)?),
        Expr::Or(left, right) => any_of(positive(left)?, positive(right)?),
        // A flow is excluded if it is selected in either direction.
        Expr::Not(inner) => match turned(inner) {
            same if same == **inner => negative(inner),
            turned => all_of(&negative(inner)?, &negative(&turned)?),
        },
    }
}

/// The alternatives of the opposite of an expression, for the packet as it is.
fn negative(expr: &Expr) -> Result<Alternatives, TooLarge> {
    match expr {
        Expr::Term(term) => Ok(vec![vec![Term {
            negated: true,
            ..*term
        }]]),
        Expr::And(left, right) => any_of(negative(left)?, negative(right)?),
        Expr::Or(left, right) => all_of(&negative(left)?, &negative(right)?),
        Expr::Not(inner) => match turned(inner) {
            same if same == **inner => positive(inner),
            turned => any_of(positive(inner)?, positive(&turned)?),
        },
    }
}

/// The expression with source and destination exchanged.
fn turned(expr: &Expr) -> Expr {
    match expr {
        Expr::Term(term) => {
            let end = match term.end {
                End::Either => End::Either,
                End::Source => End::Destination,
                End::Destination => End::Source,
            };
            Expr::Term(Term { end, ..*term })
        }
        Expr::And(left, right) => turned(left).and(turned(right)),
        Expr::Or(left, right) => turned(left).or(turned(right)),
        Expr::Not(inner) => turned(inner).negate(),
    }
}

fn any_of(mut left: Alternatives, right: Alternatives) -> Result<Alternatives, TooLarge> {
    left.extend(right);
    absorb(&mut left);
    if left.len() > WORK_MAX {
        Err(TooLarge::Clauses(None))
    } else {
        Ok(left)
    }
}

fn all_of(left: &Alternatives, right: &Alternatives) -> Result<Alternatives, TooLarge> {
    if left.len() * right.len() > WORK_MAX {
        return Err(TooLarge::Clauses(None));
    }
    let mut product = Vec::with_capacity(left.len() * right.len());
    for left in left {
        for right in right {
            let mut terms = left.clone();
            terms.extend(right.iter().filter(|term| !left.contains(term)));
            product.push(terms);
        }
    }
    absorb(&mut product);
    if product.iter().any(|terms| terms.len() > TERMS_MAX) {
        Err(TooLarge::Terms)
    } else {
        Ok(product)
    }
}

/// Removes every alternative that holds only where another one holds too.
fn absorb(alternatives: &mut Alternatives) {
    let mut kept: Alternatives = Vec::with_capacity(alternatives.len());
    alternatives.sort_by_key(Vec::len);
    for terms in alternatives.drain(..) {
        if !kept
            .iter()
            .any(|weaker| weaker.iter().all(|term| terms.contains(term)))
        {
            kept.push(terms);
        }
    }
    *alternatives = kept;
}
