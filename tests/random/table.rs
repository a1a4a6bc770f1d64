//! Counts judgements and shows them as Markdown.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::judge::Judgement;
use crate::run::Verdict;

/// How many verdicts were worth what.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub right: u64,
    pub inconclusive: u64,
    /// Those of the inconclusive that need not have been.
    pub needless: u64,
    pub wrong: u64,
    pub wrongly_proven: u64,
}

impl Tally {
    pub fn add(&mut self, judgement: &Judgement) {
        match judgement {
            Judgement::Right => self.right += 1,
            Judgement::Inconclusive => self.inconclusive += 1,
            Judgement::Needless(_) => {
                self.inconclusive += 1;
                self.needless += 1;
            }
            Judgement::Wrong(_) => self.wrong += 1,
            Judgement::WronglyProven(_) => self.wrongly_proven += 1,
        }
    }
}

/// All the tallies of a batch.
#[derive(Debug, Default)]
pub struct Table {
    pub total: Tally,
    by_fault: BTreeMap<&'static str, Tally>,
    by_view: BTreeMap<&'static str, Tally>,
    by_ending: BTreeMap<&'static str, Tally>,
    by_hooks: BTreeMap<&'static str, Tally>,
}

impl Table {
    pub fn add(&mut self, verdict: &Verdict) {
        let hooks = if verdict.view.tracepoints {
            "--hooks tracepoints"
        } else {
            "--hooks auto"
        };
        for tally in [
            &mut self.total,
            self.by_fault.entry(verdict.fault).or_default(),
            self.by_view.entry(verdict.view.label()).or_default(),
            self.by_ending
                .entry(verdict.view.ending_label())
                .or_default(),
            self.by_hooks.entry(hooks).or_default(),
        ] {
            tally.add(&verdict.judgement);
        }
    }

    pub fn to_markdown(&self) -> String {
        let mut text = String::new();
        for (title, rows) in [
            ("by fault", &self.by_fault),
            ("by view", &self.by_view),
            ("by end of the trace", &self.by_ending),
            ("by hooks", &self.by_hooks),
        ] {
            let _ = writeln!(
                text,
                "| {title:37} | right | inconclusive | (needlessly) | wrong | wrongly proven |\n\
                 |{:-<39}|------:|-------------:|-------------:|------:|---------------:|",
                ""
            );
            for (name, tally) in rows {
                row(&mut text, name, tally);
            }
            text.push('\n');
        }
        let _ = writeln!(
            text,
            "| {:37} | right | inconclusive | (needlessly) | wrong | wrongly proven |\n\
             |{:-<39}|------:|-------------:|-------------:|------:|---------------:|",
            "all", ""
        );
        row(&mut text, "every verdict", &self.total);
        text
    }
}

fn row(text: &mut String, name: &str, tally: &Tally) {
    let Tally {
        right,
        inconclusive,
        needless,
        wrong,
        wrongly_proven,
    } = tally;
    let _ = writeln!(
        text,
        "| {name:37} | {right:5} | {inconclusive:12} | {needless:12} | {wrong:5} | {wrongly_proven:14} |"
    );
}

#[cfg(test)]
mod tests {
    use super::Tally;
    use crate::judge::Judgement;

    #[test]
    fn each_judgement_is_counted_once() {
        let mut tally = Tally::default();
        tally.add(&Judgement::Right);
        tally.add(&Judgement::Needless(String::new()));
        tally.add(&Judgement::Wrong(String::new()));
        tally.add(&Judgement::WronglyProven(String::new()));
        let want = Tally {
            right: 1,
            inconclusive: 1,
            needless: 1,
            wrong: 1,
            wrongly_proven: 1,
        };
        assert_eq!(tally, want);
    }
}
