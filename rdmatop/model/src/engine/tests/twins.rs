//! Two engines that are given the same say the same, word by word: an engine reads nothing but its inputs.

use proptest::prelude::*;

use super::{
    history::{Lab, Step, history},
    *,
};

proptest! {
    #[test]
    fn two_engines_say_the_same_of_one_history(lossy: bool, first: bool, steps in history()) {
        let config = EngineConfig { max_ended: 4, ..EngineConfig::default() };
        let mut lab = Lab::new(config.clone(), lossy);
        lab.twin = Some(Engine::new(config));
        if first {
            lab.run(&Step::Attach);
        }
        for step in &steps {
            lab.run(step);
            let now = lab.present();
            let (one, other) = (lab.engine.tick(now), lab.twin.as_mut().unwrap().tick(now));
            prop_assert_eq!(format!("{one:?}"), format!("{other:?}"));
        }
    }
}
