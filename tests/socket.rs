//! Options of a listener that make it turn away what reaches it.

use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd as _, BorrowedFd};

use anyhow::{Result, ensure};
use nix::libc;
use tracer::lab::Family;

/// Has a socket's own filter reject every packet.
pub fn reject_all(socket: BorrowedFd<'_>) -> Result<()> {
    // `BPF_RET | BPF_K`: keep no byte.
    let mut code = [libc::sock_filter {
        code: 0x06,
        jt: 0,
        jf: 0,
        k: 0,
    }];
    let filter = libc::sock_fprog {
        len: 1,
        filter: code.as_mut_ptr(),
    };
    set(socket, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &filter)
}

/// Has a listener put aside every ACK until data come, for longer than any test waits (`TCP_DEFER_ACCEPT`).
pub fn wait_for_data(listener: BorrowedFd<'_>) -> Result<()> {
    const SECONDS: libc::c_int = 30;
    set(
        listener,
        libc::IPPROTO_TCP,
        libc::TCP_DEFER_ACCEPT,
        &SECONDS,
    )
}

/// Has a UDP socket send what it is given as one packet that must not be fragmented, whatever ICMP says
/// (`IP_PMTUDISC_PROBE`).
pub fn never_fragment(socket: BorrowedFd<'_>, family: Family) -> Result<()> {
    let (level, option, probe) = match family {
        Family::V4 => (
            libc::IPPROTO_IP,
            libc::IP_MTU_DISCOVER,
            libc::IP_PMTUDISC_PROBE,
        ),
        Family::V6 => (
            libc::IPPROTO_IPV6,
            libc::IPV6_MTU_DISCOVER,
            libc::IPV6_PMTUDISC_PROBE,
        ),
    };
    set(socket, level, option, &probe)
}

fn set<T>(
    socket: BorrowedFd<'_>,
    level: libc::c_int,
    option: libc::c_int,
    value: &T,
) -> Result<()> {
    // SAFETY: the option's value is of the type and size that it takes, and the kernel copies what it points to.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            option,
            std::ptr::from_ref(value).cast(),
            libc::socklen_t::try_from(size_of::<T>())?,
        )
    };
    ensure!(
        result == 0,
        "setting option {option} of level {level}: {}",
        io::Error::last_os_error()
    );
    Ok(())
}
