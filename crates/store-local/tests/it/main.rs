//! The local store from outside: the shared suite, damage, crashes, a hostile world.

mod conformance;
mod damage;
mod kill;
mod smoke;
mod support;
mod world;
