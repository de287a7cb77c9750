//! Devices from outside: kinds in a registry, their names in regions and options, and what they say about autocast.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod guest;
mod names;
mod regions;
