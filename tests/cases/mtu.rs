//! `tracer mtu` on real namespaces: each mismatch is found with its sizes, is shown to bite with real packets where that
//! can be seen, and is gone after the commands that the finding names. Each has its healthy twin.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use nix::sys::socket::setsockopt;
use serde_json::Value;
use tracer::lab::{Netns, sandbox};
use tracer_tests::Run;

/// How much a socket cares for path MTUs.
mod discover {
    use nix::{libc, setsockopt_impl, sockopt_impl};

    sockopt_impl!(
        /// `IP_MTU_DISCOVER`
        MtuDiscover,
        SetOnly,
        libc::IPPROTO_IP,
        libc::IP_MTU_DISCOVER,
        i32
    );
}

/// Runs the audit of these namespaces and returns its exit code and its report.
fn audit(netns: &[&Netns]) -> Result<(i32, Value)> {
    let mut arguments = vec!["mtu", "--format", "json"];
    for netns in netns {
        arguments.extend(["--netns", netns.name()]);
    }
    let run = Run::of(&arguments)?;
    let code = run.code().context("killed")?;
    let report = serde_json::from_str(&run.stdout).with_context(|| run.to_string())?;
    Ok((code, report))
}

/// Code, smallest and largest size concerned, largest that passes: of each finding.
type Short = (String, Option<u64>, Option<u64>, Option<u64>);

fn findings(report: &Value) -> Vec<Short> {
    let list = report["findings"].as_array().into_iter().flatten();
    list.map(|finding| {
        let number = |name: &str| finding[name].as_u64();
        (
            finding["code"].as_str().unwrap_or_default().to_owned(),
            number("affected_from"),
            number("affected_to"),
            number("largest_passing"),
        )
    })
    .collect()
}

fn short(code: &str, from: u64, to: u64, passes: u64) -> Short {
    (code.to_owned(), Some(from), Some(to), Some(passes))
}

/// Nothing is found.
fn healthy(netns: &[&Netns]) -> Result<()> {
    let (code, report) = audit(netns)?;
    ensure!(code == 0 && findings(&report).is_empty(), "{report:#}");
    Ok(())
}

/// Exactly these are found, and the commands that the report names mend them all.
fn broken(netns: &[&Netns], expected: &[Short]) -> Result<Value> {
    let (code, report) = audit(netns)?;
    ensure!(
        code == 12 && findings(&report) == expected,
        "exit code {code}, expected {expected:#?}: {report:#}"
    );
    for finding in report["findings"].as_array().into_iter().flatten() {
        for command in finding["mend"].as_array().into_iter().flatten() {
            let command = command.as_str().context("a command is a string")?;
            netns[0].command("sh", &["-c", command])?;
        }
    }
    healthy(netns).context("after the commands of the findings")?;
    Ok(report)
}

/// Namespaces without IPv6, which would have its own to say about small devices.
fn add(name: &str, forwards: bool) -> Result<Netns> {
    let netns = Netns::add(name)?;
    netns.sysctl("net/ipv6/conf/all/disable_ipv6", "1")?;
    netns.sysctl("net/ipv6/conf/default/disable_ipv6", "1")?;
    if forwards {
        netns.sysctl("net/ipv4/ip_forward", "1")?;
    }
    Ok(netns)
}

/// The node and what its uplink leads to: `ens3` and `tor`, of this MTU.
fn node(mtu: u32) -> Result<(Netns, Netns)> {
    let (node, fabric) = (add("node", true)?, add("fabric", false)?);
    node.ip(&format!(
        "link add ens3 mtu {mtu} type veth peer name tor mtu {mtu} netns fabric
         addr add 192.168.50.1/24 dev ens3
         link set ens3 up"
    ))?;
    fabric.ip("addr add 192.168.50.254/24 dev tor\nlink set tor up")?;
    node.ip("route add default via 192.168.50.254")?;
    Ok((node, fabric))
}

/// A pod of the node with this number, at 10.255.4.NUMBER, which no lab has: its `eth0` and the node's `lxcNUMBER`.
fn pod(node: &Netns, number: u8, eth0: u32, lxc: u32) -> Result<Netns> {
    let name = format!("pod{number}");
    let pod = add(&name, false)?;
    node.ip(&format!(
        "link add lxc{number} mtu {lxc} type veth peer name eth0 mtu {eth0} netns {name}
         link set lxc{number} up
         addr add 10.255.4.1/32 dev lxc{number}
         route add 10.255.4.{number} dev lxc{number}"
    ))?;
    pod.ip(&format!(
        "link set eth0 up
         addr add 10.255.4.{number}/32 dev eth0
         route add 10.255.4.1 dev eth0
         route add default via 10.255.4.1"
    ))?;
    Ok(pod)
}

/// How long a new network may take until packets pass.
const SOON: Duration = Duration::from_secs(10);

/// Sends one UDP datagram whose IP packet has this size, with DF, and says whether it arrives; a small one must.
fn arrives(from: &Netns, to: &Netns, addr: IpAddr, size: usize) -> Result<bool> {
    let receiver = to.run(|| UdpSocket::bind(SocketAddr::new(addr, 0)))??;
    receiver.set_read_timeout(Some(Duration::from_millis(200)))?;
    let any = IpAddr::from(Ipv4Addr::UNSPECIFIED);
    let sender = from.run(|| UdpSocket::bind(SocketAddr::new(any, 0)))??;
    setsockopt(&sender, discover::MtuDiscover, &nix::libc::IP_PMTUDISC_DO)?;
    let mut buffer = [0; 2];
    let begin = Instant::now();
    loop {
        sender.send_to(&[1], receiver.local_addr()?)?;
        if receiver.recv(&mut buffer).is_ok() {
            break;
        }
        ensure!(begin.elapsed() < SOON, "not even a small datagram arrives");
    }
    sender.send_to(&vec![2; size - 28], receiver.local_addr()?)?;
    // A small one may have come twice.
    loop {
        match receiver.recv(&mut buffer) {
            Ok(_) if buffer[0] == 2 => return Ok(true),
            Ok(_) => {}
            Err(_) => return Ok(false),
        }
    }
}

#[test]
fn a_pod_that_sends_too_much_is_found_and_its_packets_die_from_five_bytes_on() -> Result<()> {
    sandbox::run(|| {
        let (node, fabric) = node(1460)?;
        let pod = pod(&node, 2, 1460, 1460)?;
        let all = [&node, &fabric, &pod];
        healthy(&all)?;
        node.ip("link set lxc2 mtu 1380")?;
        let gateway = IpAddr::from([10, 255, 4, 1]);
        ensure!(arrives(&pod, &node, gateway, 1384)?, "1384 should pass");
        ensure!(!arrives(&pod, &node, gateway, 1385)?, "1385 should die");
        let report = broken(&all, &[short("veth_mismatch", 1385, 1460, 1384)])?;
        let finding = &report["findings"][0];
        ensure!(finding["severity"] == "error" && finding["fate"] == "lost");
        let names: Vec<_> = finding["devices"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|at| (at["netns_name"].as_str(), at["name"].as_str()))
            .collect();
        assert_eq!(
            names,
            [(Some("pod2"), Some("eth0")), (Some("node"), Some("lxc2"))]
        );
        Ok(())
    })?
}

#[test]
fn a_node_that_sends_its_pod_too_much_is_the_other_direction() -> Result<()> {
    sandbox::run(|| {
        let (node, fabric) = node(1460)?;
        let pod = pod(&node, 2, 1380, 1460)?;
        let addr = IpAddr::from([10, 255, 4, 2]);
        ensure!(arrives(&node, &pod, addr, 1384)?, "1384 should pass");
        ensure!(!arrives(&node, &pod, addr, 1385)?, "1385 should die");
        let all = [&node, &fabric, &pod];
        broken(&all, &[short("veth_mismatch", 1385, 1460, 1384)])?;
        Ok(())
    })?
}

#[test]
fn the_ratchet_is_seen_after_each_restart_with_a_pod_of_each_generation() -> Result<()> {
    sandbox::run(|| {
        let (node, fabric) = node(1460)?;
        // This kernel may have no WireGuard; a process that speaks it holds a tun device.
        node.ip("tuntap add cilium_wg0 mode tun\nlink set cilium_wg0 mtu 1380 up\nroute add 10.255.5.0/24 dev cilium_wg0")?;
        node.nft("add table inet mss\nadd chain inet mss forward { type filter hook forward priority mangle; }\nadd rule inet mss forward tcp flags syn tcp option maxseg size set rt mtu")?;
        let mut pods = vec![pod(&node, 2, 1460, 1460)?];
        let all =
            |pods: &[Netns]| audit(&[&node, &fabric].into_iter().chain(pods).collect::<Vec<_>>());
        let (code, report) = all(&pods)?;
        ensure!(code == 0, "{report:#}");
        for restart in 1..=3_u8 {
            // The agent takes the device's MTU for the new base, shrinks the node's ends, and pods come with that.
            let base = 1460 - 80 * u32::from(restart);
            node.ip(&format!("link set cilium_wg0 mtu {}", base - 80))?;
            for number in 2..2 + restart {
                node.ip(&format!("link set lxc{number} mtu {base}"))?;
            }
            pods.push(pod(&node, 2 + restart, base, base)?);
            let (code, report) = all(&pods)?;
            ensure!(code == 12, "{report:#}");
            let mut expected: Vec<Short> = (0..restart)
                .map(|pod| {
                    let sent = 1460 - 80 * u64::from(pod);
                    let takes = u64::from(base);
                    short("veth_mismatch", takes + 5, sent, takes + 4)
                })
                .collect();
            expected.sort_by_key(|(_, _, to, _)| *to);
            let base = u64::from(base);
            expected.push(short("pods_older_than_mtu", base + 1, 1460, base));
            expected.push(short("mtu_ratchet", base - 79, 1380, base - 80));
            let mut found = findings(&report);
            let mismatches = usize::from(restart);
            found[..mismatches].sort_by_key(|(_, _, to, _)| *to);
            assert_eq!(found, expected, "restart {restart}: {report:#}");
            ensure!(!arrives(
                &pods[0],
                &node,
                IpAddr::from([10, 255, 4, 1]),
                1460
            )?);
        }
        let (_, report) = all(&pods)?;
        let all: Vec<&Netns> = [&node, &fabric].into_iter().chain(&pods).collect();
        broken(&all, &findings(&report))?;
        Ok(())
    })?
}

#[test]
fn a_vxlan_as_large_as_its_underlay_does_not_fit() -> Result<()> {
    for (local, remote, room) in [
        ("192.168.50.1", "192.168.50.254", 50_u32),
        ("fd50::1", "fd50::fe", 70),
    ] {
        sandbox::run(|| {
            let (node, fabric) = node(1500)?;
            for (netns, device, addr) in [(&node, "ens3", "fd50::1"), (&fabric, "tor", "fd50::fe")]
            {
                netns.sysctl(&format!("net/ipv6/conf/{device}/disable_ipv6"), "0")?;
                netns.ip(&format!("addr add {addr}/64 dev {device} nodad"))?;
            }
            node.ip(&format!(
                "link add vx0 mtu {} type vxlan id 7 dstport 4789 local {local} remote {remote}
                 addr add 10.255.5.1/24 dev vx0
                 link set vx0 up",
                1500 - room
            ))?;
            let all = [&node, &fabric];
            healthy(&all)?;
            node.ip("link set vx0 mtu 1500")?;
            let passes = 1500 - u64::from(room);
            broken(
                &all,
                &[short("tunnel_above_underlay", passes + 1, 1500, passes)],
            )?;
            Ok::<(), anyhow::Error>(())
        })??;
    }
    Ok(())
}

#[test]
fn a_vxlan_inside_a_vxlan_has_to_leave_room_for_both() -> Result<()> {
    sandbox::run(|| {
        let (node, fabric) = node(1500)?;
        node.ip(
            "link add vx0 mtu 1450 type vxlan id 7 dstport 4789 local 192.168.50.1 remote 192.168.50.254
             addr add 10.255.5.1/24 dev vx0
             link set vx0 up
             link add vx1 mtu 1400 type vxlan id 8 dstport 8472 local 10.255.5.1 remote 10.255.5.2
             addr add 10.255.6.1/24 dev vx1
             link set vx1 up",
        )?;
        let all = [&node, &fabric];
        healthy(&all)?;
        node.ip("link set vx1 mtu 1450")?;
        broken(&all, &[short("nested_overlays", 1401, 1450, 1400)])?;
        Ok(())
    })?
}

#[test]
fn a_forwarding_database_tells_where_a_vxlan_leads() -> Result<()> {
    sandbox::run(|| {
        let (node, fabric) = node(1500)?;
        // A second uplink, which only the forwarding entry leads to.
        node.ip(
            "link add ens4 mtu 1400 type veth peer name tor4 mtu 1400 netns fabric
             addr add 192.168.60.1/24 dev ens4
             link set ens4 up
             link add vx0 mtu 1450 type vxlan id 7 dstport 4789 nolearning
             addr add 10.255.5.1/24 dev vx0
             link set vx0 up",
        )?;
        fabric.ip("link set tor4 up")?;
        let all = [&node, &fabric];
        healthy(&all)?;
        node.command(
            "bridge",
            &[
                "fdb",
                "append",
                "00:00:00:00:00:00",
                "dev",
                "vx0",
                "dst",
                "192.168.60.2",
            ],
        )?;
        broken(&all, &[short("tunnel_above_underlay", 1351, 1450, 1350)])?;
        Ok(())
    })?
}

#[test]
fn a_bridge_below_its_ports_and_a_port_below_its_bridge() -> Result<()> {
    sandbox::run(|| {
        let (node, fabric) = node(1500)?;
        let pods = [add("pod2", false)?, add("pod3", false)?];
        node.ip("link add br0 type bridge\naddr add 10.255.4.1/24 dev br0\nlink set br0 up")?;
        for (number, pod) in (2..).zip(&pods) {
            node.ip(&format!(
                "link add p{number} type veth peer name eth0 netns pod{number}
                 link set p{number} master br0 up"
            ))?;
            pod.ip(&format!(
                "addr add 10.255.4.{number}/24 dev eth0
                 link set eth0 up
                 route add default via 10.255.4.1"
            ))?;
        }
        let all = [&node, &fabric, &pods[0], &pods[1]];
        healthy(&all)?;
        node.ip("link set br0 mtu 1400")?;
        broken(&all, &[short("bridge_below_ports", 1401, 1500, 1400)])?;
        // With br_netfilter, the node would look at what it bridges as if it routed it.
        let _ = node.sysctl("net/bridge/bridge-nf-call-iptables", "0");
        node.ip("link set p3 mtu 1400\nlink set br0 mtu 1500")?;
        pods[1].ip("link set eth0 mtu 1400")?;
        ensure!(arrives(
            &pods[0],
            &pods[1],
            IpAddr::from([10, 255, 4, 3]),
            1404
        )?);
        ensure!(!arrives(
            &pods[0],
            &pods[1],
            IpAddr::from([10, 255, 4, 3]),
            1405
        )?);
        broken(&all, &[short("bridge_port_below", 1405, 1500, 1404)])?;
        Ok(())
    })?
}

#[test]
fn what_forwarding_cuts_needs_a_clamp_or_senders_that_send_less() -> Result<()> {
    // Jumbo frames into an ordinary network, and a line that PPPoE has made eight bytes smaller.
    for (sent, uplink) in [(9000, 1500), (1500, 1492)] {
        sandbox::run(|| {
            let (node, fabric) = node(uplink)?;
            let pod = pod(&node, 2, sent, sent)?;
            let all = [&node, &fabric, &pod];
            let cut = short(
                "missing_mss_clamp",
                u64::from(uplink) + 1,
                u64::from(sent),
                u64::from(uplink),
            );
            // A clamp for one direction only is for the other one.
            node.nft("add table ip half\nadd chain ip half f { type filter hook forward priority mangle; }\nadd rule ip half f oifname \"ens3\" tcp flags syn tcp option maxseg size set rt mtu")?;
            let report = broken(&all, &[cut])?;
            let notes = report["findings"][0]["notes"].to_string();
            ensure!(notes.contains("half f"), "{notes}");
            node.nft("delete table inet mss\nadd rule ip half f iifname \"ens*\" tcp flags syn tcp option maxseg size set 1400")?;
            healthy(&all)?;
            node.nft("delete table ip half")?;
            pod.ip(&format!("route change default via 10.255.4.1 mtu {uplink}"))?;
            healthy(&all)
        })??;
    }
    Ok(())
}

#[test]
fn a_route_that_lies_is_found_and_changed() -> Result<()> {
    sandbox::run(|| {
        let (node, fabric) = node(1400)?;
        let all = [&node, &fabric];
        fabric.ip("addr add 192.0.2.9/32 dev lo")?;
        node.ip("route change default via 192.168.50.254 mtu 1400")?;
        healthy(&all)?;
        node.ip("route change default via 192.168.50.254 mtu 1500")?;
        let far = IpAddr::from([192, 0, 2, 9]);
        ensure!(arrives(&node, &fabric, far, 1404)?);
        ensure!(!arrives(&node, &fabric, far, 1405)?);
        broken(&all, &[short("route_mtu_above_device", 1401, 1500, 1400)])?;
        node.ip("route change default via 192.168.50.254 advmss 1460")?;
        broken(&all, &[short("advmss_above_mtu", 1401, 1500, 1400)])?;
        Ok(())
    })?
}

#[test]
fn what_icmp_has_told_is_shown() -> Result<()> {
    sandbox::run(|| {
        let (node, fabric) = node(1400)?;
        let pod = pod(&node, 2, 1500, 1500)?;
        fabric.ip("addr add 192.0.2.9/32 dev lo\nroute add 10.255.4.0/24 via 192.168.50.1")?;
        let sender = pod.run(|| UdpSocket::bind("0.0.0.0:0"))??;
        let begin = Instant::now();
        loop {
            // Once the devices are ready, it is answered by ICMP.
            let _ = sender.send_to(&[0; 1472], "192.0.2.9:9");
            let text = Run::of(&["mtu", "--netns", pod.name(), "--netns", "node"])?;
            if text.stdout.contains("1400 bytes to 192.0.2.9 (netns pod2)") {
                break;
            }
            ensure!(begin.elapsed() < SOON, "{}", text.stdout);
        }
        Ok(())
    })?
}

#[test]
fn a_device_too_small_for_ipv6_is_found_where_ipv6_is_spoken() -> Result<()> {
    sandbox::run(|| {
        let (node, fabric) = node(1500)?;
        node.ip(
            "tuntap add wg0 mode tun\nlink set wg0 mtu 1260 up\nroute add 10.255.5.0/24 dev wg0",
        )?;
        let all = [&node, &fabric];
        healthy(&all)?;
        node.sysctl("net/ipv6/conf/ens3/disable_ipv6", "0")?;
        node.ip("addr add fd50::1/64 dev ens3 nodad")?;
        let (code, report) = audit(&all)?;
        ensure!(code == 12, "{report:#}");
        assert_eq!(
            findings(&report),
            [("below_ipv6_minimum".to_owned(), None, None, Some(1260))]
        );
        Ok(())
    })?
}

#[test]
fn hostile_names_are_escaped_and_their_commands_still_work() -> Result<()> {
    sandbox::run(|| {
        let (node, fabric) = node(1460)?;
        let pod = pod(&node, 2, 1460, 1460)?;
        pod.ip("link set eth0 down")?;
        pod.command("ip", &["link", "set", "eth0", "name", "\u{1b}[2J"])?;
        pod.ip("link set if2 up").or_else(|_| {
            pod.command("ip", &["link", "set", "\u{1b}[2J", "up"])
                .map(drop)
        })?;
        pod.command("ip", &["route", "add", "10.255.4.1", "dev", "\u{1b}[2J"])?;
        pod.ip("route add default via 10.255.4.1")?;
        node.ip("link set lxc2 mtu 1380")?;
        let all = [&node, &fabric, &pod];
        let text = Run::of(&["mtu", "--netns", "node", "--netns", "pod2"])?;
        ensure!(text.code() == Some(12), "{text}");
        ensure!(text.stdout.contains("\\u{1b}[2J"), "{text}");
        ensure!(!text.stdout.contains('\u{1b}'), "{text}");
        broken(&all, &[short("veth_mismatch", 1385, 1460, 1384)])?;
        Ok(())
    })?
}

#[test]
fn namespaces_are_named_by_name_process_or_all_and_an_unknown_one_is_an_error() -> Result<()> {
    sandbox::run(|| {
        let (node, fabric) = node(1460)?;
        let pod = pod(&node, 2, 1460, 1380)?;
        let names = |arguments: &[&str]| -> Result<Vec<String>> {
            let run = Run::of(&[&["mtu", "--format", "json"], arguments].concat())?;
            let report: Value =
                serde_json::from_str(&run.stdout).with_context(|| run.to_string())?;
            let namespaces = report["namespaces"].as_array().into_iter().flatten();
            Ok(namespaces
                .filter_map(|netns| Some(netns["netns_name"].as_str()?.to_owned()))
                .collect())
        };
        assert_eq!(names(&["--netns", "node"])?, ["node"]);
        let every = names(&["--netns", "all"])?;
        for netns in [&node, &fabric, &pod] {
            ensure!(every.iter().any(|name| name == netns.name()), "{every:?}");
        }
        let process = std::process::id().to_string();
        ensure!(names(&["--netns", &process])?.is_empty());
        let unknown = Run::of(&["mtu", "--netns", "nodes"])?;
        ensure!(unknown.code() == Some(1), "{unknown}");
        ensure!(unknown.stderr.contains("no network namespace"), "{unknown}");
        Ok(())
    })?
}

#[test]
fn the_report_is_what_its_schema_says() -> Result<()> {
    let run = Run::of(&["schema", "mtu"])?;
    ensure!(run.code() == Some(0), "{run}");
    let schema: Value = serde_json::from_str(&run.stdout)?;
    let required: Vec<&str> = schema["required"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    sandbox::run(|| {
        let (node, _fabric) = node(1500)?;
        let (_, report) = audit(&[&node])?;
        ensure!(report["schema"] == "tracer.mtu/1", "{report:#}");
        let fields = report.as_object().context("an object")?;
        ensure!(required.iter().all(|name| fields.contains_key(*name)));
        Ok(())
    })?
}

#[test]
fn the_demo_audits_the_ratchet_and_traces_the_reply_that_dies_of_it() -> Result<()> {
    let run = Run::of(&["demo", "mtu"])?;
    ensure!(run.code() == Some(0), "{run}");
    for word in [
        "1460 → 1380 → 1300 → 1220 → 1140 is a staircase",
        "eth0 (netns pod-0) sends up to 1460 bytes",
        "lxc0 (netns node) takes 1220",
        "proven",
        "MTU",
    ] {
        ensure!(
            run.stdout.contains(word),
            "nothing about {word}: {}",
            run.stdout
        );
    }
    Ok(())
}

#[test]
fn a_probe_finds_what_passes_in_each_direction() -> Result<()> {
    sandbox::run(|| {
        let (node, _fabric) = node(1460)?;
        let pod = pod(&node, 2, 1460, 1380)?;
        ensure!(arrives(&node, &pod, IpAddr::from([10, 255, 4, 2]), 100)?);
        let probe = |from: &Netns, target: &str| -> Result<Value> {
            let arguments = [
                "mtu",
                "--netns",
                from.name(),
                "--probe",
                target,
                "--format",
                "json",
            ];
            let run = Run::of(&arguments)?;
            let report: Value =
                serde_json::from_str(&run.stdout).with_context(|| run.to_string())?;
            Ok(report["probe"].clone())
        };
        let sizes = |probe: &Value| {
            ["largest_answered", "largest_there", "largest_back"].map(|name| probe[name].as_u64())
        };
        // The node sends 1380 at most, and takes 1384.
        let down = probe(&node, "10.255.4.2")?;
        assert_eq!(sizes(&down), [Some(1380), Some(1380), Some(1384)], "{down}");
        let up = probe(&pod, "10.255.4.1")?;
        assert_eq!(sizes(&up), [Some(1384), Some(1384), Some(1380)], "{up}");
        let nobody = probe(&node, "10.255.4.2")?;
        ensure!(nobody["packets"].as_u64() < Some(120), "{nobody}");
        node.ip("addr add fd04::1/64 dev lxc2 nodad").or_else(|_| {
            node.sysctl("net/ipv6/conf/lxc2/disable_ipv6", "0")?;
            node.ip("addr add fd04::1/64 dev lxc2 nodad")
        })?;
        pod.sysctl("net/ipv6/conf/eth0/disable_ipv6", "0")?;
        pod.ip("addr add fd04::2/64 dev eth0 nodad")?;
        let six = probe(&node, "fd04::2")?;
        assert_eq!(sizes(&six), [Some(1380), Some(1380), Some(1384)], "{six}");
        let text = Run::of(&["mtu", "--netns", "node", "--probe", "10.255.4.77"])?;
        ensure!(text.stdout.contains("no echo of any size"), "{text}");
        Ok(())
    })?
}
