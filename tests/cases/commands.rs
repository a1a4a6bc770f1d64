//! The commands that a newcomer types first.

use anyhow::{Result, ensure};
use tracer_tests::Run;

#[test]
fn the_demo_names_the_router_that_drops_the_synack_and_tells_a_healthy_network() -> Result<()> {
    // One after the other: both demos have the same addresses.
    let lost = Run::of(&["demo"])?;
    ensure!(lost.code() == Some(0), "{lost}");
    for word in [
        "SYN-ACK",
        "netns underlay",
        "netfilter",
        "proven",
        "10.254.2.2:6379",
    ] {
        ensure!(
            lost.stdout.contains(word),
            "nothing about {word}: {}",
            lost.stdout
        );
    }
    let healthy = Run::of(&["demo", "healthy"])?;
    ensure!(healthy.code() == Some(0), "{healthy}");
    ensure!(healthy.stdout.contains("answered"), "{}", healthy.stdout);
    Ok(())
}

#[test]
fn check_says_what_this_kernel_lets_us_see() -> Result<()> {
    let run = Run::of(&["check"])?;
    ensure!(run.code() == Some(0), "{run}");
    for hook in ["net_dev_start_xmit", "netif_receive_skb", "kfree_skb"] {
        ensure!(
            run.stdout.contains(hook),
            "nothing about {hook}: {}",
            run.stdout
        );
    }
    Ok(())
}
