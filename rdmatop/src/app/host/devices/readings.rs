//! Readings that threads do, and the answers that a round waits for.

use std::{sync::Arc, time::Duration};

use super::{
    job::{Answer, DeviceList, Job, What},
    present::Present,
    round::Round,
    schedule::{MOST, Schedule, Step, Subject},
};
use rdmatop_model::cause::Cause;
use rdmatop_sources::{
    clock::now,
    netlink::error::NetlinkError,
    readers::{Readers, Work},
};

pub(super) struct Readings {
    readers: Readers<Job, (Subject, Answer)>,
    pub(super) schedule: Schedule,
    pub(super) device_list: Option<Result<DeviceList, NetlinkError>>,
}

impl Readings {
    /// `work` makes the work of a thread.
    pub(super) fn new(work: impl Fn() -> Work<Job, (Subject, Answer)> + Send + Sync + 'static) -> Self {
        Self {
            readers: Readers::new(MOST, 1, work),
            schedule: Schedule::default(),
            device_list: None,
        }
    }

    /// Gives a thread something to read.
    pub(super) fn order(
        &mut self,
        subject: Subject,
        name: &Arc<str>,
        present: &Present,
        round: &Round,
        what: What,
    ) {
        let progress = self.schedule.ask(subject, name, now().mono_ns, round.once);
        self.readers.push(Job {
            subject,
            progress,
            before_ns: round.before_ns,
            place: present.place_of(subject),
            what,
        });
    }

    /// Takes answers for as long as the round waits for any.
    pub(super) fn wait(&mut self, present: &mut Present, round: &mut Round) {
        let mut refused = false;
        loop {
            let step = self
                .schedule
                .step(now().mono_ns, self.readers.free(), !refused, round.once);
            match step {
                Step::Done => break,
                Step::Wait(ns) => {
                    self.readers
                        .wait_for(self.schedule.awaited(), Duration::from_nanos(ns));
                    self.collect(present, round);
                }
                Step::Grow if self.readers.grow() => {}
                Step::Grow if self.readers.threads() == 0 => {
                    if let Some((subject, answer)) = self.readers.work_here() {
                        self.take(subject, answer, present, round);
                    }
                }
                Step::Grow => refused = true,
            }
        }
        self.schedule.give_up();
    }

    /// Takes the answers that have arrived.
    pub(super) fn collect(&mut self, present: &mut Present, round: &mut Round) {
        while let Some((subject, answer)) = self.readers.answer() {
            self.take(subject, answer, present, round);
        }
    }

    fn take(&mut self, subject: Subject, answer: Answer, present: &mut Present, round: &mut Round) {
        if !self.schedule.answered(subject, now().mono_ns) {
            return;
        }
        match (subject, answer) {
            (_, Answer::DeviceList(found)) => self.device_list = Some(found),
            (Subject::Device(id), Answer::Device(answer)) => present.answered(id, *answer, round),
            (Subject::DeviceList, Answer::Device(_)) => {}
        }
    }

    /// The list of devices, once it has arrived.
    pub(super) fn device_list(
        &mut self,
        present: &mut Present,
        round: &mut Round,
    ) -> Option<Result<DeviceList, NetlinkError>> {
        if self.device_list.is_none() {
            if !self.schedule.is_asked(Subject::DeviceList) {
                let what = What::DeviceList { mode: present.mode };
                let name = "the list of RDMA devices".into();
                self.order(Subject::DeviceList, &name, present, round, what);
            }
            self.wait(present, round);
        }
        self.device_list.take()
    }

    /// Forgets what was asked of devices that are gone.
    pub(super) fn keep(&mut self, present: &Present) {
        self.schedule.keep(|id| present.has(id));
    }

    /// Returns a note for each device that answers late.
    pub(super) fn notes(&self) -> Vec<Cause> {
        self.schedule.notes(now().mono_ns, self.readers.threads())
    }
}
