//! One netlink socket inside one network namespace. A socket stays in the namespace in which it was made, so it needs
//! no privilege any more once it is open.
//!
//! Framing only: what a message means is the business of whoever asks ([`super::rtnetlink`], [`super::sockdiag`], …). Only the kernel is
//! believed: a datagram that another process sent to the socket is skipped.

use std::{
    io::IoSliceMut,
    os::fd::{AsFd, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd},
};

use netlink_packet_core::{
    NLM_F_DUMP_INTR, NLM_F_REQUEST, NLMSG_DONE, NLMSG_ERROR, NetlinkBuffer, NetlinkHeader,
    NetlinkMessage, NetlinkPayload, NetlinkSerializable,
};
use nix::{
    errno::Errno,
    sys::{
        socket::{
            AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind,
            getsockname, recvmsg, sendto, setsockopt, socket, sockopt,
        },
        time::{TimeVal, TimeValLike as _},
    },
};

/// Datagrams of a dump are at most 32 KiB (`NL_MAX_DUMP_ALLOC` of `netlink_dump()` in net/netlink/af_netlink.c), and so
/// is one that tells about a single device.
pub(super) const BUFFER_BYTES: usize = 64 * 1024;

/// The most datagrams that are thrown away in one go; a full queue holds some hundreds.
const DISCARDED_MAX: usize = 4096;

/// A message without its header.
#[derive(Clone, Copy, Debug)]
pub(super) struct Message<'a> {
    /// `nlmsg_type`.
    pub kind: u16,
    /// What follows the header.
    pub payload: &'a [u8],
}

/// The socket.
#[derive(Debug)]
pub(super) struct Netlink {
    fd: OwnedFd,
    /// The socket's own `nl_pid`: with the sequence number it tells our answers from notifications, which carry
    /// the number of whoever caused the change.
    port: u32,
    sequence: u32,
}

impl Netlink {
    /// Opens a socket in the namespace of the calling thread, subscribed to these groups (`nl_groups`).
    pub(super) fn open(protocol: SockProtocol, groups: u32) -> Result<Self, Errno> {
        let fd = socket(
            AddressFamily::Netlink,
            SockType::Raw,
            SockFlag::SOCK_CLOEXEC,
            protocol,
        )?;
        Self::prepare(fd, groups)
    }

    /// The same for a protocol (`NETLINK_*`) that the library's list lacks, subscribed to nothing.
    pub(super) fn open_by_number(protocol: i32) -> Result<Self, Errno> {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
        // SAFETY: the call takes three numbers and no memory.
        let fd = Errno::result(unsafe { libc::socket(libc::AF_NETLINK, kind, protocol) })?;
        // SAFETY: the kernel has just made this descriptor for us, and nobody else owns it.
        Self::prepare(unsafe { OwnedFd::from_raw_fd(fd) }, 0)
    }

    fn prepare(fd: OwnedFd, groups: u32) -> Result<Self, Errno> {
        bind(fd.as_raw_fd(), &NetlinkAddr::new(0, groups))?;
        // The kernel answers a request before send() returns; this bounds the wait should it ever not.
        setsockopt(&fd, sockopt::ReceiveTimeout, &TimeVal::seconds(1))?;
        Self::adopt(fd)
    }

    /// Takes over a socket that another process has opened like [`Netlink::open`].
    pub(super) fn adopt(fd: OwnedFd) -> Result<Self, Errno> {
        let port = getsockname::<NetlinkAddr>(fd.as_raw_fd())?.pid();
        Ok(Self {
            fd,
            port,
            sequence: 0,
        })
    }

    /// Takes one datagram of notifications that is already there, if any, and hands on its messages. `ENOBUFS` says that
    /// notifications were lost.
    pub(super) fn poll(
        &mut self,
        buffer: &mut [u8],
        each: &mut dyn FnMut(Message<'_>),
    ) -> Result<bool, Errno> {
        match self.receive(buffer, MsgFlags::MSG_DONTWAIT) {
            Ok(datagram) => {
                for_each_message(datagram, |_, message| each(message));
                Ok(true)
            }
            Err(Errno::EAGAIN) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Throws away what waits to be read, with it the rest of a dump that was given up.
    pub(super) fn discard(&mut self, buffer: &mut [u8]) {
        for _ in 0..DISCARDED_MAX {
            match self.receive(buffer, MsgFlags::MSG_DONTWAIT) {
                Ok(_) | Err(Errno::ENOBUFS) => {}
                Err(_) => break,
            }
        }
    }

    /// Sends a request that has no type in a library, and hands on the answers: all of a dump where `flags` has
    /// `NLM_F_DUMP`, else one.
    pub(super) fn ask(
        &mut self,
        kind: u16,
        flags: u16,
        payload: &[u8],
        buffer: &mut [u8],
        each: &mut dyn FnMut(Message<'_>),
    ) -> Result<(), Errno> {
        // struct nlmsghdr: length, type, flags, sequence number, port.
        let length = u32::try_from(16 + payload.len()).map_err(|_| Errno::EMSGSIZE)?;
        let sequence = self.next_sequence();
        let mut bytes = length.to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend((NLM_F_REQUEST | flags).to_ne_bytes());
        bytes.extend(sequence.to_ne_bytes());
        bytes.extend(0_u32.to_ne_bytes());
        bytes.extend(payload);
        self.send_bytes(&bytes)?;
        self.answers(sequence, buffer, each)?;
        Ok(())
    }

    /// Sends a request and returns its number.
    pub(super) fn send<M: NetlinkSerializable>(
        &mut self,
        request: M,
        flags: u16,
    ) -> Result<u32, Errno> {
        let sequence = self.next_sequence();
        let payload = NetlinkPayload::InnerMessage(request);
        let mut message = NetlinkMessage::new(NetlinkHeader::default(), payload);
        message.header.flags = flags;
        message.header.sequence_number = sequence;
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        self.send_bytes(&bytes)?;
        Ok(sequence)
    }

    fn next_sequence(&mut self) -> u32 {
        // 0 is the number of notifications.
        self.sequence = self.sequence.wrapping_add(1).max(1);
        self.sequence
    }

    fn send_bytes(&self, bytes: &[u8]) -> Result<(), Errno> {
        let kernel = NetlinkAddr::new(0, 0);
        sendto(self.fd.as_raw_fd(), bytes, &kernel, MsgFlags::empty())?;
        Ok(())
    }

    /// Receives until the request with this number is answered. Says whether the answer is torn.
    pub(super) fn answers(
        &mut self,
        sequence: u32,
        buffer: &mut [u8],
        each: &mut dyn FnMut(Message<'_>),
    ) -> Result<bool, Errno> {
        let port = self.port;
        let mut torn = false;
        loop {
            let mut end = None;
            let datagram = self.receive(buffer, MsgFlags::empty())?;
            for_each_message(datagram, |header, message| {
                if (header.port_number(), header.sequence_number()) != (port, sequence) {
                    each(message);
                    return;
                }
                torn |= header.flags() & NLM_F_DUMP_INTR != 0;
                match message.kind {
                    NLMSG_DONE | NLMSG_ERROR => end = Some(status(message.payload)),
                    _ => {
                        each(message);
                        if header.flags() & libc::NLM_F_MULTI as u16 == 0 {
                            end = Some(Ok(()));
                        }
                    }
                }
            });
            if let Some(result) = end {
                return result.map(|()| torn);
            }
        }
    }

    /// One datagram from the kernel.
    fn receive<'a>(&self, buffer: &'a mut [u8], flags: MsgFlags) -> Result<&'a [u8], Errno> {
        loop {
            let mut slices = [IoSliceMut::new(buffer)];
            let received = recvmsg::<NetlinkAddr>(self.fd.as_raw_fd(), &mut slices, None, flags);
            let (length, sender) = match received {
                Ok(message) => (message.bytes, message.address),
                Err(Errno::EINTR) => continue,
                Err(errno) => return Err(errno),
            };
            if sender.is_some_and(|sender| sender.pid() == 0) {
                return Ok(&buffer[..length]);
            }
        }
    }
}

impl AsFd for Netlink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The errno of an `NLMSG_ERROR` or `NLMSG_DONE`: negative, or 0 for success.
fn status(payload: &[u8]) -> Result<(), Errno> {
    let code = payload
        .first_chunk()
        .map_or(0, |bytes| i32::from_ne_bytes(*bytes));
    if code < 0 {
        Err(Errno::from_raw(code.saturating_neg()))
    } else {
        Ok(())
    }
}

/// Walks the messages of a datagram; stops at the first one that does not fit.
fn for_each_message(datagram: &[u8], mut each: impl FnMut(&NetlinkBuffer<&[u8]>, Message<'_>)) {
    let mut rest = datagram;
    while let Ok(buffer) = NetlinkBuffer::new_checked(rest) {
        each(
            &buffer,
            Message {
                kind: buffer.message_type(),
                payload: buffer.payload(),
            },
        );
        let length = (buffer.length() as usize).next_multiple_of(4);
        match rest.get(length..) {
            Some(next) => rest = next,
            None => break,
        }
    }
}
