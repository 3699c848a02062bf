//! A panic on purpose, for the tests of what one leaves behind.

use std::{convert::Infallible, time::Duration};

/// Panics after the seconds of `RDMATOP_PANIC`, and never ends where that is not set.
pub(super) async fn after(seconds: Option<&str>) -> Infallible {
    match seconds.and_then(|seconds| seconds.parse().ok()) {
        Some(seconds) => {
            tokio::time::sleep(Duration::from_secs(seconds)).await;
            panic!("RDMATOP_PANIC is set");
        }
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waits(seconds: Option<&str>) -> bool {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build();
        let limit = Duration::from_millis(20);
        let end = async { tokio::time::timeout(limit, after(seconds)).await.is_err() };
        runtime.unwrap().block_on(end)
    }

    #[test]
    fn it_comes_only_where_it_was_asked_for() {
        assert!(waits(None) && waits(Some("")) && waits(Some("soon")) && waits(Some("60")));
    }

    #[test]
    #[should_panic(expected = "RDMATOP_PANIC is set")]
    fn it_comes_after_its_time() {
        waits(Some("0"));
    }
}
