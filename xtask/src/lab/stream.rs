//! Removes the end marker from a stream that arrives in pieces.

/// Passes bytes on until the marker arrives.
pub(crate) struct UntilMarker {
    marker: Vec<u8>,
    held: Vec<u8>,
    ended: bool,
}

impl UntilMarker {
    /// Makes a filter for a stream that ends with `marker`.
    pub(crate) fn new(marker: &str) -> Self {
        Self {
            marker: marker.as_bytes().to_vec(),
            held: Vec::new(),
            ended: false,
        }
    }

    /// Takes a piece and returns the bytes that certainly do not belong to the marker.
    pub(crate) fn feed(&mut self, piece: &[u8]) -> Vec<u8> {
        if self.ended {
            return Vec::new();
        }
        self.held.extend_from_slice(piece);
        if let Some(at) = self
            .held
            .windows(self.marker.len())
            .position(|window| window == self.marker)
        {
            self.ended = true;
            self.held.truncate(at);
            return std::mem::take(&mut self.held);
        }
        // The end of this piece may be the beginning of the marker, so it is held back.
        let longest = self.held.len().min(self.marker.len() - 1);
        let keep = (1..=longest)
            .rev()
            .find(|&len| self.held.ends_with(&self.marker[..len]))
            .unwrap_or(0);
        let rest = self.held.split_off(self.held.len() - keep);
        std::mem::replace(&mut self.held, rest)
    }

    /// Whether the marker has arrived.
    pub(crate) fn ended(&self) -> bool {
        self.ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_marker_is_found_however_the_stream_is_cut() {
        let stream = b"one <<two<<END\nthree<<END>>never";
        for first in 0..stream.len() {
            for second in first..stream.len() {
                let mut filter = UntilMarker::new("<<END>>");
                let mut passed = Vec::new();
                for piece in [&stream[..first], &stream[first..second], &stream[second..]] {
                    passed.extend(filter.feed(piece));
                }
                assert_eq!(passed, b"one <<two<<END\nthree", "cut at {first} and {second}");
                assert!(filter.ended());
            }
        }
    }

    #[test]
    fn what_cannot_be_the_marker_passes_at_once() {
        let mut filter = UntilMarker::new("<<END>>");
        assert_eq!(filter.feed(b"prompt$ "), b"prompt$ ");
        assert_eq!(filter.feed(b"<<EN"), b"");
        assert_eq!(filter.feed(b"x"), b"<<ENx");
        assert!(!filter.ended());
    }
}
