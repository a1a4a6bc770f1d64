//! What is written for later use: the capture.

pub mod capture;
