//! The kernel tests that run by default in a guest for aarch64, in an executable of their own: compiling all
//! of them for another machine takes minutes, and this one needs no traffic program. xtask/src/test/places.rs
//! says which of its tests run.

#[cfg(test)]
#[path = "../tests/exact.rs"]
mod exact;
#[cfg(test)]
#[path = "../tests/lifecycle.rs"]
mod lifecycle;

#[cfg(not(test))]
fn main() {}
