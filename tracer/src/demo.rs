//! Builds a small network in namespaces of its own, breaks it or does not, lets a client dial a server in it, and
//! traces that with this very program. Nothing of it is left when the demo ends, however it ends.

use std::env;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Stdio};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::cli::Scenario;
use crate::exit;
use crate::lab::{Family, Outcome, Plan, Server, Topology, connect, mortal, sandbox};
use crate::privilege;

/// The lab's number, which no test reaches: its addresses are 10.254.0.0/16.
const LAB: u8 = 254;
/// Redis, as in the incident that this program was made for.
const PORT: u16 = 6379;

/// Shows a scenario. Fails if the verdict is not the scenario's own.
pub fn run(scenario: Scenario) -> Result<u8> {
    privilege::check()?;
    sandbox::run(|| show(scenario))?
}

fn show(scenario: Scenario) -> Result<u8> {
    let plan = Plan::new(LAB, Family::V4);
    let server = plan.server(PORT);
    anstream::eprintln!(
        "A client in netns pod-a dials a server in netns pod-b at {server}.\n\
         Their nodes, node-a and node-b, are joined by VXLAN across the router netns underlay."
    );
    let lab = Topology::build(plan)?;
    if scenario == Scenario::LostSynack {
        anstream::eprintln!("Something between the nodes loses the answer. Where?");
        lab.underlay.nft(&plan.drop_synack_in_tunnel())?;
    }
    let _server = Server::start(&lab.pod_b, server)?;
    let (arguments, expected) = match scenario {
        Scenario::LostSynack => ("--until-verdict --for 10s", exit::FAULT),
        Scenario::Healthy => ("--for 2s", exit::OK),
    };
    let arguments = format!("trace {arguments} host {} and port {PORT}", server.ip());
    anstream::eprintln!("\n$ sudo tracer {arguments}");
    let (mut child, talk) = start(&arguments)?;
    let attempt = connect(&lab.pod_a, 0, server)?;
    let status = child.wait().context("waiting for the trace")?;
    // The thread ends with the child's stderr.
    let _ = talk.join();
    let outcome = attempt.wait(Duration::ZERO);
    let answered = matches!(outcome, Outcome::Connected(_));
    if answered != (scenario == Scenario::Healthy) {
        bail!("the demo's network is not as it should be: the client got {outcome:?}");
    }
    match status.code() {
        Some(code) if code == i32::from(expected) => Ok(exit::OK),
        Some(code) => bail!("the trace ended with exit code {code}; {expected} was to be expected"),
        None => bail!("the trace was killed ({status})"),
    }
}

/// Starts the trace and waits until it says that it is ready; the rest of what it says goes to stderr as it comes.
fn start(arguments: &str) -> Result<(Child, JoinHandle<()>)> {
    let program = env::current_exe().context("where is this program?")?;
    let mut child = mortal(program)
        .args(arguments.split(' '))
        .stderr(Stdio::piped())
        .spawn()
        .context("starting the trace")?;
    let stderr = child.stderr.take().context("the trace has no stderr")?;
    let mut lines = BufReader::new(stderr).lines();
    loop {
        let Some(line) = lines.next().transpose()? else {
            let status = child.wait()?;
            bail!("the trace ended before it was ready ({status})");
        };
        anstream::eprintln!("{line}");
        if line.starts_with("tracer: ready") {
            break;
        }
    }
    anstream::eprintln!();
    let talk = thread::spawn(move || {
        for line in lines.map_while(Result::ok) {
            anstream::eprintln!("{line}");
        }
    });
    Ok((child, talk))
}
