//! What a device leaves undone: veth passes packets on without a checksum, and nobody looks at one that is not there.

use std::io;
use std::mem::zeroed;
use std::net::UdpSocket;
use std::os::fd::AsRawFd as _;

use anyhow::{Context as _, Result};
use nix::libc;
use tracer::lab::Netns;

/// `ETHTOOL_STXCSUM`
const SET_TX_CHECKSUM: u32 = 0x17;

/// `struct ethtool_value`
#[repr(C)]
struct Value {
    command: u32,
    data: u32,
}

/// Has every packet that a device sends carry its whole checksum, as on a real wire.
pub fn send_checksums(netns: &Netns, device: &str) -> Result<()> {
    let set = || -> Result<()> {
        let socket = UdpSocket::bind("127.0.0.1:0").or_else(|_| UdpSocket::bind("[::1]:0"))?;
        let mut value = Value {
            command: SET_TX_CHECKSUM,
            data: 0,
        };
        // SAFETY: the structure is plain, and all zeroes is one of its values.
        let mut request: libc::ifreq = unsafe { zeroed() };
        for (to, from) in request.ifr_name.iter_mut().zip(device.bytes()) {
            *to = libc::c_char::try_from(from)?;
        }
        request.ifr_ifru.ifru_data = (&raw mut value).cast();
        // SAFETY: the request and what it points to live until the call returns, and are of the kind that it takes.
        let result =
            unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL, &raw mut request) };
        if result < 0 {
            return Err(io::Error::last_os_error().into());
        }
        Ok(())
    };
    netns.run(set)?.with_context(|| {
        format!(
            "switching off what {device} of {} leaves undone",
            netns.name()
        )
    })
}
