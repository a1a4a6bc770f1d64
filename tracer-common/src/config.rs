//! The configuration that userspace freezes into the programs before they are loaded.
