//! How long `tracer mtu` takes on a node of the size at which that begins to matter.

use std::process::Stdio;
use std::time::Instant;

use anyhow::{Result, ensure};
use tracer::lab::{Netns, mortal, sandbox};

use crate::Bench;
use crate::statistics::Estimate;
use crate::table::Table;

/// Namespaces of pods, each with two cables to the node: with loopback that makes five devices for each.
const PODS: u32 = 200;

pub fn measure(bench: &Bench, table: &mut Table) -> Result<()> {
    // In a sandbox of its own, so that no other group meets its namespaces.
    let samples = sandbox::run(|| -> Result<Vec<f64>> {
        let node = Netns::add("audit-node")?;
        node.sysctl("net/ipv4/ip_forward", "1")?;
        let mut pods = Vec::new();
        for number in 0..PODS {
            let pod = Netns::add(&format!("audit-{number}"))?;
            node.ip(&format!(
                "link add a{number} type veth peer name eth0 netns audit-{number}\n\
                 link add b{number} type veth peer name eth1 netns audit-{number}\n\
                 link set a{number} up\n\
                 link set b{number} up\n"
            ))?;
            let [high, low] = [number / 250, number % 250 + 2];
            pod.ip(&format!(
                "link set eth0 up\n\
                 link set eth1 up\n\
                 addr add 10.9.{high}.{low}/16 dev eth0\n\
                 route add default via 10.9.255.1\n"
            ))?;
            pods.push(pod);
        }
        let mut samples = Vec::new();
        for _ in 0..bench.rounds {
            let begin = Instant::now();
            let status = mortal(tracer_tests::binary()?)
                .args(["mtu", "--format", "json"])
                .stdout(Stdio::null())
                .status()?;
            samples.push(begin.elapsed().as_secs_f64() * 1e3);
            let code = status.code();
            ensure!(code == Some(0) || code == Some(12), "{status}");
        }
        Ok(samples)
    })??;
    table.row(
        &format!(
            "`tracer mtu`, {PODS} pods' namespaces and {} devices",
            PODS * 5
        ),
        Estimate::median(&samples),
        "ms",
        None,
    );
    Ok(())
}
