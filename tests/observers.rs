//! Three tracers that watch one lab at once: the whole kernel, the server's node, the client's node.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::{env, process};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;
use tracer::lab::{Family, Topology};

use crate::expect::{Expected, Views};
use crate::runner::{Run, Tracer};

/// A bound only: every test interrupts its tracers when its traffic is over.
const AT_MOST: &str = "20m";

/// The three, attached.
#[derive(Debug)]
pub struct Observers {
    full: Tracer,
    server_node: Tracer,
    client_node: Tracer,
}

/// What the three said.
#[derive(Debug)]
pub struct Reports {
    /// The whole kernel, filtered to this lab's addresses.
    pub full: Run,
    /// `--netns node-b --pods`.
    pub server_node: Run,
    /// `--netns node-a --pods`.
    pub client_node: Run,
}

impl Observers {
    /// Starts them and waits until all are attached.
    pub fn start(lab: &Topology) -> Result<Self> {
        let start = |view: &str, narrowed: &[&str]| {
            let capture = capture_path(view, lab.plan.family());
            let mut arguments = vec!["trace", "--format", "json", "--for", AT_MOST];
            if let Some(path) = &capture {
                arguments.extend(["--capture", path]);
            }
            arguments.extend(narrowed);
            Tracer::start(&arguments)
        };
        let mut observers = Self {
            full: start("full", &[&lab.plan.filter()])?,
            server_node: start("server", &["--netns", lab.node_b.name(), "--pods"])?,
            client_node: start("client", &["--netns", lab.node_a.name(), "--pods"])?,
        };
        for tracer in [
            &mut observers.full,
            &mut observers.server_node,
            &mut observers.client_node,
        ] {
            tracer.wait_until_ready()?;
        }
        Ok(observers)
    }

    /// Ends the trace as an operator does, and collects the reports.
    pub fn stop(self) -> Result<Reports> {
        Ok(Reports {
            full: self.full.interrupt()?,
            server_node: self.server_node.interrupt()?,
            client_node: self.client_node.interrupt()?,
        })
    }
}

/// Where this test's view is recorded, if `TRACER_LAB_CAPTURES` names a directory: to be read with `tracer report`, or
/// kept as a fixture of the golden reports.
fn capture_path(view: &str, family: Family) -> Option<String> {
    let directory = env::var("TRACER_LAB_CAPTURES").ok()?;
    // The test runner names the test as the first argument that is no option.
    let test = env::args()
        .skip(1)
        .find(|argument| !argument.starts_with('-'));
    let test = test.unwrap_or_else(|| process::id().to_string());
    let test = test.rsplit("::").next().unwrap_or(&test);
    let version = match family {
        Family::V4 => "",
        Family::V6 => "-v6",
    };
    Some(format!("{directory}/{test}{version}-{view}.jsonl"))
}

impl Reports {
    /// Holds the reports against what is expected of each flow, named by its client's address. Every other flow
    /// must be without fault, nothing may be lost on the way to the report, and the exit code must follow.
    pub fn check(&self, flows: &[(SocketAddr, Views)]) -> Result<()> {
        type View = fn(&Views) -> Expected;
        let views: [(&str, &Run, View); 3] = [
            ("full view", &self.full, |views| views.full),
            ("server node's view", &self.server_node, |views| {
                views.server_node
            }),
            ("client node's view", &self.client_node, |views| {
                views.client_node
            }),
        ];
        let mut wrong = Vec::new();
        for (name, run, of_view) in views {
            let expected: Vec<_> = flows
                .iter()
                .map(|(client, views)| (*client, of_view(views)))
                .collect();
            for difference in differences(run, &expected)? {
                wrong.push(format!("{name}: {difference}"));
            }
        }
        if !wrong.is_empty() {
            bail!("{}", wrong.join("\n"));
        }
        Ok(())
    }
}

/// The kernel skipped runs of a tracer's programs, since an interrupt came while the same program ran on that CPU. On a
/// machine that is busy with other tests it happens, no test asks for it, and no verdict can be judged after it.
#[derive(Debug, thiserror::Error)]
#[error("the kernel skipped {missed} runs of a tracer's programs")]
pub struct Disturbed {
    /// `ledger.missed`.
    pub missed: u64,
}

/// How a report differs from what is expected of each flow, named by its client's address; see [`Reports::check`].
/// [`Disturbed`] is an error.
pub fn differences(run: &Run, expected: &[(SocketAddr, Expected)]) -> Result<Vec<String>> {
    let report = run.report()?;
    match report.pointer("/ledger/missed").and_then(Value::as_u64) {
        Some(0) => {}
        Some(missed) => return Err(Disturbed { missed }.into()),
        None => bail!("a report without a ledger"),
    }
    let mut differences = Vec::new();
    let no_flows = Vec::new();
    let flows = report
        .pointer("/flows")
        .and_then(Value::as_array)
        .unwrap_or(&no_flows);
    let mut by_client: HashMap<IpAddr, Vec<&Value>> = HashMap::new();
    for flow in flows {
        let client = flow.pointer("/client/addr").and_then(Value::as_str);
        let client = client.context("a flow without a client")?.parse()?;
        by_client.entry(client).or_default().push(flow);
    }
    let mut named = HashSet::new();
    for (client, expected) in expected {
        let of_client = by_client.get(&client.ip()).into_iter().flatten();
        let found: Vec<&Value> = of_client
            .copied()
            .filter(|flow| has_port(flow, client.port()))
            .collect();
        named.extend(found.iter().map(|flow| std::ptr::from_ref(*flow)));
        if found.len() > 1 {
            differences.push(format!("{} flows from {client}, want one", found.len()));
        }
        let flow = found.first().copied();
        for difference in expected.differences(flow) {
            let shown = flow.map(|flow| format!("{flow:#}")).unwrap_or_default();
            differences.push(format!("{client}: {difference}\n{shown}"));
        }
    }
    let is_named = |flow: &&Value| named.contains(&std::ptr::from_ref(*flow));
    let others: Vec<&Value> = flows.iter().filter(|flow| !is_named(flow)).collect();
    for flow in &others {
        let code = flow.pointer("/verdict/code").and_then(Value::as_str);
        if !matches!(code, Some("answered" | "one_way" | "inconclusive")) {
            differences.push(format!("a fault that did not happen:\n{flow:#}"));
        }
    }
    if report.pointer("/ledger/clean") != Some(&Value::Bool(true)) {
        differences.push(format!("the ledger is not clean: {:#}", report["ledger"]));
    }
    let codes: Vec<i32> = expected
        .iter()
        .filter_map(|(_, want)| want.exit_code())
        .collect();
    // 10 wins over 11, and 11 is also what no flow at all gives.
    let code = [10, 11]
        .into_iter()
        .find(|code| codes.contains(code))
        .unwrap_or(if codes.is_empty() { 11 } else { 0 });
    if run.code() != Some(code) {
        let others: Vec<String> = others.iter().map(|flow| format!("{flow:#}")).collect();
        differences.push(format!(
            "the exit code is {:?}, want {code}; the flows that are not expected: {}",
            run.code(),
            others.join("\n")
        ));
    }
    Ok(differences)
}

/// What has no ports has none to compare.
fn has_port(flow: &Value, port: u16) -> bool {
    let client = flow.pointer("/client/port").and_then(Value::as_u64);
    client.is_none_or(|client| client == u64::from(port))
}
