//! Interleaved comparison: in every round each tool is measured once, between two untraced blocks.

use anyhow::Result;

use crate::network::Pair;
use crate::statistics::{Estimate, median};
use crate::tools::Tool;

/// One measurement with a tool, and what was measured without it just before and after.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    pub untraced: f64,
    pub traced: f64,
}

/// The samples of each tool, in the tools' order.
pub struct Comparison {
    samples: Vec<Vec<Sample>>,
    /// What the rings of the tracers could not hold.
    pub lost_events: u64,
}

/// Measures all tools in each of `rounds`.
pub fn compare(
    pair: &Pair,
    rounds: usize,
    tools: &[Tool],
    mut measure: impl FnMut() -> Result<f64>,
) -> Result<Comparison> {
    let mut lost_events = 0;
    let mut samples = vec![Vec::with_capacity(rounds); tools.len()];
    // The first block warms caches and neighbours.
    measure()?;
    for round in 0..rounds {
        let mut before = measure()?;
        for turn in 0..tools.len() {
            // Every round begins with another tool, so that none is always measured after the same one.
            let index = (round + turn) % tools.len();
            let tool = tools[index];
            let running = tool.start(pair)?;
            let traced = measure()?;
            if let Some(running) = running {
                let ended = running.interrupt()?;
                if matches!(tool, Tool::Tracer(_)) {
                    lost_events += ended.report()?.lost()?;
                }
            }
            let after = measure()?;
            samples[index].push(Sample {
                untraced: f64::midpoint(before, after),
                traced,
            });
            before = after;
        }
    }
    Ok(Comparison {
        samples,
        lost_events,
    })
}

impl Comparison {
    /// The tool's samples, by its place among the tools.
    pub fn samples(&self, tool: usize) -> &[Sample] {
        &self.samples[tool]
    }

    /// The median of traced ÷ untraced.
    pub fn ratio(&self, tool: usize) -> Estimate {
        let ratios: Vec<f64> = self.samples[tool]
            .iter()
            .map(|sample| sample.traced / sample.untraced)
            .collect();
        Estimate::median(&ratios)
    }

    /// The median of what the tool adds.
    pub fn added(&self, tool: usize) -> Estimate {
        Estimate::of(&self.samples[tool], added)
    }

    /// What one tool adds ÷ what another adds, of the rounds that both were measured in.
    pub fn added_ratio(&self, tool: usize, rival: usize) -> Estimate {
        let both: Vec<(Sample, Sample)> = self.samples[tool]
            .iter()
            .copied()
            .zip(self.samples[rival].iter().copied())
            .collect();
        Estimate::of(&both, |both| {
            let (ours, theirs): (Vec<_>, Vec<_>) = both.iter().copied().unzip();
            added(&ours) / added(&theirs)
        })
    }
}

fn added(samples: &[Sample]) -> f64 {
    let differences: Vec<f64> = samples
        .iter()
        .map(|sample| sample.traced - sample.untraced)
        .collect();
    median(&differences)
}
