//! A made-up machine as a list of inputs, for tests of everything between the seam and the views.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use rdmatop_model::input::{DeviceReading, DevicesSample, Input};
use rdmatop_sources::clock::now;
use rdmatop_sources::seam::{Polled, Wants};

/// Plays rounds, then an empty one for ever; records what the pump asked for.
pub(super) struct Fake {
    rounds: std::vec::IntoIter<Vec<Input>>,
    pub(super) asked: Arc<Mutex<Vec<Wants>>>,
    hang: Duration,
}

impl Fake {
    pub(super) fn new(rounds: Vec<Vec<Input>>) -> Self {
        Self {
            rounds: rounds.into_iter(),
            asked: Arc::default(),
            hang: Duration::ZERO,
        }
    }

    pub(super) fn hanging(hang: Duration) -> Self {
        Self {
            hang,
            ..Self::new(Vec::new())
        }
    }
}

impl Polled for Fake {
    fn name(&self) -> &'static str {
        "the fake"
    }

    fn poll(&mut self, wants: &Wants, out: &mut dyn FnMut(Input)) {
        self.asked.lock().unwrap().push(wants.clone());
        std::thread::sleep(self.hang);
        for input in self.rounds.next().unwrap_or_default() {
            out(input);
        }
    }
}

pub(super) fn devices(names: &[&str]) -> Input {
    let devices = names
        .iter()
        .zip(0..)
        .map(|(name, index)| DeviceReading {
            index,
            name: (*name).to_owned(),
            ..DeviceReading::default()
        })
        .collect();
    Input::Devices(Box::new(DevicesSample {
        mono_ns: now().mono_ns,
        devices,
        ..DevicesSample::default()
    }))
}
