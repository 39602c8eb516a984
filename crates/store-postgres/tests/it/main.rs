//! The tests of the store on PostgreSQL. They start their own servers.

mod conformance;
mod crashes;
mod importing;
mod lost_answers;
mod opening;
mod proxy;
mod same_answers;
mod support;
mod taken_over;
mod tampered;
