//! Every scenario, in one binary so that they run side by side.

mod lab;
