//! Devices from outside: kinds in a registry, their names in regions and options, what they say
//! about autocast, and what goes between them and the host.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod guest;
mod host;
mod names;
mod queued;
mod regions;
#[allow(dead_code, reason = "the tests of the runtime use all of it")]
#[path = "../../runtime/tests/run/guest.rs"]
mod worker;
