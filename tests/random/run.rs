//! One run: a network, its faults, its load and its views, chosen by a number; then what each view said of each
//! connection, held against the truth.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};
use serde_json::Value;
use tracer::lab::{Server, UdpServer, answer_dns, listen, sandbox};

use crate::breaking::{self, Counted};
use crate::exchange::{self, Exchange};
use crate::fault::{CHANGE_MS, Carrier, Fault, Scope};
use crate::judge::{Judgement, judge};
use crate::load::{self, Connection, End, FIRST_PORT, Load};
use crate::network::{DNS_PORT, Network};
use crate::rng::Rng;
use crate::shape::{Shape, Target};
use crate::truth::{Facts, Seen};
use crate::view::{Ending, Observed, Observer, View};

/// Longer than what is left of the answer deadline after the last SYN.
const SETTLE: Duration = Duration::from_millis(700);

/// What is done in a run.
#[derive(Debug)]
pub struct Scenario {
    pub shape: Shape,
    pub faults: Vec<Fault>,
    pub load: Load,
    pub views: Vec<View>,
}

/// What one view said of one connection.
pub struct Verdict {
    /// The row of the fault that the connection met.
    pub fault: &'static str,
    pub view: View,
    pub judgement: Judgement,
    pub port: u16,
}

/// What a run showed.
pub struct Outcome {
    pub verdicts: Vec<Verdict>,
    /// What is wrong with a report as a whole.
    pub complaints: Vec<String>,
}

impl Scenario {
    /// The scenario of a run; the same for the same numbers.
    pub fn choose(seed: u64, run: u64) -> Self {
        let mut rng = Rng::new(seed, run);
        let shape = Shape::choose(&mut rng);
        let mut faults = Vec::new();
        if !rng.chance(12) {
            faults.push(Fault::choose(&mut rng, shape, FIRST_PORT));
            if rng.chance(25) {
                faults.push(Fault::choose_second(
                    &mut rng, shape, FIRST_PORT, &faults[0],
                ));
            }
        }
        let mut load = Load::choose(&mut rng);
        let mut killers = faults
            .iter()
            .enumerate()
            .flat_map(|(number, fault)| fault.killers(number, shape));
        if killers.any(|killer| killer.scope == Scope::Everybody) {
            // A server that waits for an ACK drops the SYN of the next connection from that port: another fault.
            load.reused = 0;
        }
        let is_about = |carrier| faults.iter().any(|fault| fault.carrier() == carrier);
        if is_about(Carrier::Udp) {
            load.queries = load.queries.max(3);
        }
        load.echo |= is_about(Carrier::Echo);
        let mut views = vec![View::choose(&mut rng)];
        if rng.chance(60) {
            views.push(View::choose(&mut rng));
        }
        Self {
            shape,
            faults,
            load,
            views,
        }
    }

    fn target(&self) -> Target {
        self.faults.first().map_or(Target::Main, Fault::target)
    }

    /// Does it, in a sandbox of its own. Captures and reports go into `directory`.
    pub fn run(&self, directory: &Path) -> Result<Outcome> {
        let (number, _claim) = tracer_tests::claim_number()?;
        sandbox::run(|| self.run_in_sandbox(number, directory))?
    }

    fn run_in_sandbox(&self, number: u8, directory: &Path) -> Result<Outcome> {
        let network = &Network::build(number, self.shape)?;
        let _main = Server::start(network.pod_b(), network.backend(Target::Main))?;
        let _other = Server::start(network.pod_b(), network.backend(Target::Other))?;
        let _full = listen(network.pod_b(), network.backend(Target::Full), 0)?;
        let resolver = SocketAddr::new(network.plan.server(0).ip(), DNS_PORT);
        let _resolver = UdpServer::start(network.pod_b(), resolver, answer_dns)?;
        let warm = load::warm_up(network);
        ensure!(
            warm.end == End::Connected,
            "the network does not work while it is healthy: {:?}",
            warm.end
        );
        breaking::count_packets(network)?;
        let mut observers = Vec::new();
        for (number, view) in self.views.iter().enumerate() {
            observers.push(Observer::start(*view, number, network, directory)?);
        }

        let mut connections = load::before(network, &self.load);
        let _held = if self.target() == Target::Full {
            let (connection, stream) = load::fill_queue(network)?;
            connections.push(connection);
            stream
        } else {
            None
        };
        let mut programs = Vec::new();
        for (number, fault) in self.faults.iter().enumerate() {
            if fault.from_ms == 0 {
                let program = breaking::apply(network, number, fault);
                programs.push(program.with_context(|| fault.to_string())?);
            }
        }
        let faults_began = Instant::now();
        let done = Mutex::new(connections);
        let exchanges = thread::scope(|scope| -> Result<Vec<Exchange>> {
            load::start(scope, network, &self.load, self.target(), &done);
            let queries = scope.spawn(|| exchange::queries(network, self.load.queries));
            let echo = scope.spawn(|| self.load.echo.then(|| exchange::echo(network)));
            self.keep_time(network, faults_began, &mut observers)?;
            let mut exchanges = queries.join().map_err(|_| anyhow!("queries panicked"))??;
            exchanges.extend(echo.join().map_err(|_| anyhow!("the echo panicked"))?);
            Ok(exchanges)
        })?;
        thread::sleep(SETTLE);
        // A query's deadline is later than any of TCP's.
        let latest = exchanges.iter().map(|each| each.began + each.deadline());
        if let Some(latest) = latest.max() {
            let until = latest + Duration::from_millis(300);
            thread::sleep(until.saturating_duration_since(Instant::now()));
        }
        for observer in &mut observers {
            observer.end()?;
        }
        let mut connections = done.into_inner().unwrap_or_else(PoisonError::into_inner);
        connections.sort_by_key(|connection| connection.began);
        let counted = Counted::read(network)?;
        let taken = self
            .faults
            .iter()
            .enumerate()
            .map(|(number, fault)| breaking::taken(network, number, fault))
            .collect::<Result<Vec<_>>>()?;
        let killers: Vec<_> = self
            .faults
            .iter()
            .enumerate()
            .flat_map(|(number, fault)| fault.killers(number, self.shape))
            .collect();
        let facts = Facts {
            shape: self.shape,
            killers: &killers,
            taken: &taken,
            counted: &counted,
            faults_began,
        };
        let mut outcome = Outcome {
            verdicts: Vec::new(),
            complaints: Vec::new(),
        };
        for (number, observer) in observers.into_iter().enumerate() {
            let observed = observer.collect()?;
            std::fs::write(
                directory.join(format!("view-{number}.json")),
                format!("{:#}", observed.report),
            )?;
            self.hold(&observed, &connections, &facts, network, &mut outcome)?;
            self.hold_exchanges(&observed, &exchanges, &facts, network, &mut outcome)?;
        }
        std::fs::write(
            directory.join("truth.txt"),
            format!("{self}\n{connections:#?}\n{counted:?}\n{exchanges:#?}\n{taken:?}\n"),
        )?;
        Ok(outcome)
    }

    /// Changes the faults and ends the traces in time, beside the load.
    fn keep_time(
        &self,
        network: &Network,
        began: Instant,
        observers: &mut [Observer],
    ) -> Result<()> {
        let mut changes: Vec<(u64, Option<usize>)> = vec![(CHANGE_MS, None)];
        for (number, observer) in observers.iter().enumerate() {
            if let Ending::Early(ms) | Ending::Killed(Some(ms)) = observer.view.ending {
                changes.push((ms, Some(number)));
            }
        }
        changes.sort_unstable();
        for (ms, observer) in changes {
            let at = began + Duration::from_millis(ms);
            thread::sleep(at.saturating_duration_since(Instant::now()));
            match observer {
                Some(number) => observers[number].end()?,
                None => {
                    for (number, fault) in self.faults.iter().enumerate() {
                        if fault.from_ms == CHANGE_MS {
                            breaking::apply(network, number, fault)?;
                        }
                        if fault.until_ms == CHANGE_MS {
                            breaking::heal(network, number, fault)?;
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Judges all that one view said.
    fn hold(
        &self,
        observed: &Observed,
        connections: &[Connection],
        facts: &Facts<'_>,
        network: &Network,
        outcome: &mut Outcome,
    ) -> Result<()> {
        let report = &observed.report;
        let view = observed.view;
        let flows = report["flows"].as_array().context("flows")?;
        let is_clean = report.pointer("/ledger/clean") == Some(&Value::Bool(true));
        let seen = Seen {
            range: view.range(self.shape),
            closed: observed.closed,
        };
        let is_ours = |flow: &&Value| {
            let addr = flow.pointer("/client/addr").and_then(Value::as_str);
            let addr = addr.and_then(|addr| addr.parse::<IpAddr>().ok());
            flow["protocol"] == "tcp" && addr.is_some_and(|addr| network.plan.owns(addr))
        };
        let ours: Vec<&Value> = flows.iter().filter(is_ours).collect();
        let port_of = |flow: &Value| flow.pointer("/client/port").and_then(Value::as_u64);
        let mut ports: Vec<u16> = connections.iter().map(|each| each.port).collect();
        ports.sort_unstable();
        ports.dedup();
        for port in &ports {
            let mut told = ours
                .iter()
                .filter(|flow| port_of(flow) == Some(u64::from(*port)));
            for connection in connections.iter().filter(|each| each.port == *port) {
                // A port that was still in use was not connected from.
                let is_nothing = connection.may_be_unsent && port == &load::REUSED_PORT;
                if connection.began > seen.closed.1 || is_nothing {
                    continue;
                }
                let truth = facts.truth(connection, seen);
                // A connection that is not there does not take the place of the next with the same port.
                let flow = if truth.is_unseen && told.clone().next().is_none() {
                    None
                } else {
                    told.next()
                };
                outcome.verdicts.push(Verdict {
                    fault: self.row(connection, facts),
                    view,
                    judgement: judge(flow.copied(), &truth, is_clean),
                    port: *port,
                });
            }
            if let Some(flow) = told.next() {
                outcome
                    .complaints
                    .push(format!("{view}: one flow too many: {flow:#}"));
            }
        }
        for flow in &ours {
            let is_known =
                port_of(flow).is_some_and(|port| ports.iter().any(|p| u64::from(*p) == port));
            let code = flow.pointer("/verdict/code").and_then(Value::as_str);
            let is_fault = !matches!(code, Some("answered" | "inconclusive"));
            if !is_known && is_fault {
                outcome
                    .complaints
                    .push(format!("{view}: a fault of no connection: {flow:#}"));
            }
        }
        let codes: Vec<&str> = flows
            .iter()
            .filter_map(|flow| flow.pointer("/verdict/code").and_then(Value::as_str))
            .collect();
        let is_fault = |code: &&str| !matches!(*code, "answered" | "one_way" | "inconclusive");
        let want = if codes.iter().any(is_fault) {
            10
        } else if codes.is_empty() || codes.contains(&"inconclusive") {
            11
        } else {
            0
        };
        if observed.code != Some(want) {
            outcome.complaints.push(format!(
                "{view}: exit code {:?}, want {want}",
                observed.code
            ));
        }
        Ok(())
    }

    /// Judges all that one view said of queries and echoes.
    fn hold_exchanges(
        &self,
        observed: &Observed,
        exchanges: &[Exchange],
        facts: &Facts<'_>,
        network: &Network,
        outcome: &mut Outcome,
    ) -> Result<()> {
        let report = &observed.report;
        let flows = report["flows"].as_array().context("flows")?;
        let is_clean = report.pointer("/ledger/clean") == Some(&Value::Bool(true));
        let seen = Seen {
            range: observed.view.range(self.shape),
            closed: observed.closed,
        };
        for exchange in exchanges {
            if exchange.began > seen.closed.1 {
                continue;
            }
            let is_it = |flow: &&Value| {
                let addr = flow.pointer("/client/addr").and_then(Value::as_str);
                let addr = addr.and_then(|addr| addr.parse::<IpAddr>().ok());
                let is_ours = addr.is_some_and(|addr| network.plan.owns(addr));
                let (protocol, port) = (flow["protocol"].as_str(), &flow["client"]["port"]);
                is_ours
                    && match exchange.carrier {
                        Carrier::Echo => protocol.is_some_and(|name| name.starts_with("icmp")),
                        _ => protocol == Some("udp") && *port == exchange.client,
                    }
            };
            let told: Vec<&Value> = flows.iter().filter(is_it).collect();
            if told.len() > 1 {
                outcome.complaints.push(format!(
                    "{}: {} flows of {exchange:?}",
                    observed.view,
                    told.len()
                ));
            }
            let truth = facts.truth_of_exchange(exchange, seen);
            outcome.verdicts.push(Verdict {
                fault: if facts.concerns_exchange(exchange) {
                    self.fault_row()
                } else {
                    "healthy"
                },
                view: observed.view,
                judgement: judge(told.first().copied(), &truth, is_clean),
                port: exchange.client,
            });
        }
        Ok(())
    }

    /// The row of the table that a connection belongs to.
    fn row(&self, connection: &Connection, facts: &Facts<'_>) -> &'static str {
        if connection.is_before_faults || !facts.concerns(connection) {
            return "healthy";
        }
        self.fault_row()
    }

    fn fault_row(&self) -> &'static str {
        match &self.faults[..] {
            [] => "healthy",
            [fault] => fault.label(),
            _ => "two faults",
        }
    }
}

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "network: {}", self.shape)?;
        for fault in &self.faults {
            writeln!(f, "fault:   {fault}")?;
        }
        writeln!(f, "load:    {:?}", self.load)?;
        for view in &self.views {
            writeln!(f, "view:    {view}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::Scenario;

    #[test]
    fn the_same_seed_gives_the_same_runs_and_every_fault_kills_somewhere_on_the_way() {
        for run in 0..500 {
            let scenario = Scenario::choose(7, run);
            let again = Scenario::choose(7, run);
            assert_eq!(format!("{scenario:?}"), format!("{again:?}"));
            for (number, fault) in scenario.faults.iter().enumerate() {
                let killers = fault.killers(number, scenario.shape);
                assert!(!killers.is_empty(), "{fault}");
                for killer in killers {
                    assert!(killer.netns <= scenario.shape.last(), "{fault}");
                    assert!(!killer.causes.is_empty(), "{fault}");
                }
            }
        }
    }
}
