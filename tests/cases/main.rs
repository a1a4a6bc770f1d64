//! Every scenario, in one binary so that they run side by side.

mod bad_input;
mod budget;
mod capture;
mod changing;
mod commands;
mod data;
mod datagrams;
mod explain;
mod faults_listeners;
mod faults_netfilter;
mod faults_packets;
mod faults_programs;
mod faults_routes;
mod faults_tunnels;
mod gave_up;
mod handshake;
mod healthy;
mod lab;
mod loss;
mod many_flows;
mod mid_flow;
mod nat;
mod nat_datagrams;
mod tcpdump;
mod topology;
mod watch;
