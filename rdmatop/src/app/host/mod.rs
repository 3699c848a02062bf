//! This machine's sources behind the seam. Only here do readings become inputs of the model.
mod advice;
mod devices;
mod gpus;
mod health;
mod hw_counters;
mod limits;
mod mappings;
mod maps;
mod openers;
mod processes;
mod tcp;

pub use advice::Advice;
pub use devices::DeviceSource;
pub use gpus::gpus;
pub use health::health;
pub use hw_counters::hw_counters;
pub use maps::{maps, seen};
pub use openers::OpenerSource;
pub use processes::{ProcessSource, SharedDetails};
pub use tcp::tcp;
