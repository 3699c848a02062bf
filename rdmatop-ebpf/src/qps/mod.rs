//! What the programs of the control plane know about QPs, with counters (`counted`) or without (`bare`). Both
//! have the same functions, so that the programs are written once.

#[cfg(not(feature = "counters"))]
mod bare;
#[cfg(feature = "counters")]
mod counted;

#[cfg(not(feature = "counters"))]
pub(crate) use bare::*;
#[cfg(feature = "counters")]
pub(crate) use counted::*;
