//! The time of a step on many ranks, from the time of a step alone and from what an exchange takes.

/// What a reduction takes: so long, and so much longer for each byte.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Network {
    /// In seconds.
    pub(crate) latency: f64,
    /// In seconds.
    pub(crate) per_byte: f64,
}

/// The network that steps are carried to: 100 Gbit/s for each rank, 2 µs from rank to rank, and 0.5
/// µs of a processor for each message.
const BYTES_PER_SECOND: f64 = 12.5e9;
const WAY: f64 = 2e-6;
const MESSAGE: f64 = 0.5e-6;

impl Network {
    /// The one of these reductions, by their bytes and times, smallest first: the smallest has the
    /// latency, the largest the bandwidth.
    pub(crate) fn fitted(reductions: &[(f64, f64)]) -> Self {
        let [(small, latency), .., (large, time)] = *reductions else {
            return Network { latency: 0.0, per_byte: 0.0 };
        };
        Network { latency, per_byte: (time - latency) / (large - small) }
    }

    /// The one that steps are carried to: a reduction greets every other rank, sends each its
    /// chunk, and takes from each what it has combined: equal numbers of bytes leave a rank and
    /// come in at once.
    pub(crate) fn stated(ranks: usize) -> Self {
        let others = (ranks - 1) as f64;
        let share = others / ranks as f64;
        Network {
            latency: 3.0 * (WAY + others * MESSAGE),
            per_byte: 2.0 * share / BYTES_PER_SECOND,
        }
    }

    /// How long a reduction of `bytes` takes.
    pub(crate) fn time(&self, bytes: f64) -> f64 {
        self.latency + self.per_byte * bytes
    }
}

/// A step of a rank that waits for no other.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    /// In seconds.
    pub(crate) time: f64,
    /// In the order in which they begin.
    pub(crate) buckets: Vec<Bucket>,
}

/// What is reduced together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bucket {
    pub(crate) bytes: f64,
    /// Seconds from the start of the step until the operands are there, and until the results are
    /// read.
    pub(crate) ready: f64,
    pub(crate) needed: f64,
}

impl Step {
    /// The time of the step where reductions are the work of the processors that compute: nothing
    /// is hidden.
    pub(crate) fn shared(&self, network: &Network) -> f64 {
        self.time + self.buckets.iter().map(|bucket| network.time(bucket.bytes)).sum::<f64>()
    }

    /// The time of the step where reductions go on beside it, one after another: it waits only
    /// where a result is read that is not there.
    pub(crate) fn beside(&self, network: &Network) -> f64 {
        let (mut waited, mut ends) = (0.0, 0.0f64);
        let mut ended = Vec::new();
        let mut reads: Vec<usize> = (0..self.buckets.len()).collect();
        reads.sort_by(|a, b| self.buckets[*a].needed.total_cmp(&self.buckets[*b].needed));
        for at in reads {
            // All buckets that are ready by then have begun, in their order; what the step has
            // waited so far delays the later ones.
            while ended.len() <= at {
                let bucket = &self.buckets[ended.len()];
                ends = ends.max(bucket.ready + waited) + network.time(bucket.bytes);
                ended.push(ends);
            }
            waited += (ended[at] - self.buckets[at].needed - waited).max(0.0);
        }
        self.time + waited
    }

    /// The same with neighbouring buckets put together while they have no more bytes than that.
    fn in_buckets(&self, most: f64) -> Step {
        let mut buckets: Vec<Bucket> = Vec::new();
        for bucket in &self.buckets {
            match buckets.last_mut().filter(|last| last.bytes + bucket.bytes <= most) {
                Some(last) => {
                    last.bytes += bucket.bytes;
                    last.ready = last.ready.max(bucket.ready);
                    last.needed = last.needed.min(bucket.needed).max(last.ready);
                }
                None => buckets.push(*bucket),
            }
        }
        Step { time: self.time, buckets }
    }
}

/// The time of the step on `ranks` ranks of the stated network, with buckets of at most `bucket`
/// bytes.
pub(crate) fn carried(step: &Step, ranks: usize, bucket: f64) -> f64 {
    step.in_buckets(bucket).beside(&Network::stated(ranks))
}
