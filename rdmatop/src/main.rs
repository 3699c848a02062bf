//! The `rdmatop` program: see the library.
fn main() {}
