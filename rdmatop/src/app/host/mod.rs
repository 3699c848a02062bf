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
pub use gpus::GpuSource;
pub use health::HealthSource;
pub use hw_counters::HwCountersSource;
pub use maps::{MapSource, SeenSource};
pub use openers::OpenerSource;
pub use processes::{ProcessSource, SharedDetails};
pub use tcp::TcpSource;
