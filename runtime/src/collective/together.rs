//! [`Together`]: reductions of ranks that see each other's memory. Each rank's own thread combines
//! its chunk of the elements of all ranks in place, and writes the result to where each rank wants
//! it: nothing is copied, and no other thread is woken.
//!
//! Ranks greet each other as in any exchange, which tells that all have come here, and part when
//! all are done. A rank that fails in between leaves only when nobody works on its memory, and
//! nobody begins to after that.

use super::exchanging::{Exchanging, Failure, LONGER, Problem, Way};
use super::mailbox::Mailbox;
use super::transport::{Lost, Transport};
use super::{Flight, Label, Places, Reduction, Transfer};
use crate::error::Result;
use crate::memory::{Memory, Span};
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// The side of one rank.
pub(super) struct Together {
    table: Arc<Table>,
    exchanging: Mutex<Exchanging<Mailbox>>,
}

/// What ranks show each other.
pub(super) struct Table {
    shown: Mutex<Shown>,
    idle: Condvar,
}

struct Shown {
    /// For each rank where its values are, while it reduces.
    places: Vec<Option<Arc<Places>>>,
    /// How many ranks work on them.
    working: usize,
    /// Why nobody begins to work any more, once a rank has given up.
    closed: Option<Failure>,
}

/// One that works, until it is dropped.
struct Working<'a>(&'a Table);

/// One that shows its places, until it is dropped.
struct Showing<'a>(&'a Table, usize);

/// One that reduces, until it is dropped: if that is before it has come to an end, it has panicked.
struct Reducing<'a> {
    table: &'a Table,
    exchanging: MutexGuard<'a, Exchanging<Mailbox>>,
    label: Label,
    has_ended: bool,
}

impl Together {
    pub(super) fn new(table: Arc<Table>, exchanging: Exchanging<Mailbox>) -> Self {
        Together { table, exchanging: Mutex::new(exchanging) }
    }

    /// As [`Collective::reduce`](super::Collective::reduce).
    pub(super) fn reduce(&self, reduction: &Reduction<'_>) -> Result<Flight> {
        let exchanging = self.exchanging.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(failure) = exchanging.failed() {
            return Err(failure.into());
        }
        let (table, label) = (&*self.table, reduction.label);
        let _showing = table.show(exchanging.transport.rank(), reduction.places);
        let mut reducing = Reducing { table, exchanging, label, has_ended: false };
        let done = self.meet(&mut reducing.exchanging, reduction);
        reducing.has_ended = true;
        done.map_err(|problem| {
            let failure = reducing.exchanging.failure(problem, label);
            reducing.fail(failure).into()
        })
    }

    /// Lets nobody begin to work any more. It does not wait: not even for a reduction of this rank
    /// that goes on.
    pub(super) fn give_up(&self, failure: &Failure) {
        self.table.refuse(failure);
    }

    fn meet(
        &self,
        exchanging: &mut Exchanging<Mailbox>,
        reduction: &Reduction<'_>,
    ) -> std::result::Result<Flight, Problem> {
        let Reduction { across, dtype, label, places, .. } = *reduction;
        let transfer = Transfer::Reduce { across, dtype };
        let (way, until) = exchanging.greet(transfer, label, places.bytes(), Way::Memory)?;
        let began = Instant::now();
        match way {
            Way::Memory => {
                let rank = exchanging.transport.rank();
                {
                    let (places, _working) = self.table.begin()?;
                    combine(reduction, &places, rank)?;
                }
                exchanging.meet(until + LONGER)?;
            }
            Way::Bytes => by_bytes(exchanging, reduction, until)?,
        }
        Ok(Flight { began, ended: Instant::now() })
    }
}

impl Table {
    pub(super) fn new(size: usize) -> Self {
        let shown = Shown { places: vec![None; size], working: 0, closed: None };
        Table { shown: Mutex::new(shown), idle: Condvar::new() }
    }

    fn shown(&self) -> MutexGuard<'_, Shown> {
        self.shown.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn show(&self, rank: usize, places: &Arc<Places>) -> Showing<'_> {
        self.shown().places[rank] = Some(places.clone());
        Showing(self, rank)
    }

    /// The places of all ranks, and the right to work on them.
    ///
    /// # Errors
    /// Why a rank has given up, if one has.
    fn begin(&self) -> std::result::Result<(Vec<Arc<Places>>, Working<'_>), Problem> {
        let mut shown = self.shown();
        if let Some(failure) = &shown.closed {
            return Err(Problem::Failed(failure.clone()));
        }
        let places = shown.places.iter().cloned().collect::<Option<_>>();
        let places =
            places.ok_or_else(|| Lost::Broken("a rank does not show its values".to_owned()))?;
        shown.working += 1;
        Ok((places, Working(self)))
    }

    /// Lets nobody begin any more.
    fn refuse(&self, failure: &Failure) {
        self.shown().closed.get_or_insert_with(|| failure.clone());
    }

    /// The same, and waits for those who have begun.
    fn close(&self, failure: &Failure) {
        self.refuse(failure);
        let mut shown = self.shown();
        while shown.working > 0 {
            shown = self.idle.wait(shown).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Drop for Working<'_> {
    fn drop(&mut self) {
        self.0.shown().working -= 1;
        self.0.idle.notify_all();
    }
}

impl Drop for Showing<'_> {
    fn drop(&mut self) {
        self.0.shown().places[self.1] = None;
    }
}

impl Reducing<'_> {
    /// Tells the other ranks, and waits until none works on this one's memory.
    fn fail(&mut self, failure: Failure) -> Failure {
        let failure = self.exchanging.fail(failure);
        self.table.close(&failure);
        failure
    }
}

impl Drop for Reducing<'_> {
    fn drop(&mut self) {
        if !self.has_ended {
            let rank = self.exchanging.transport.rank();
            self.fail(Failure::own(rank, self.label, "has panicked".to_owned()));
        }
    }
}

/// Combines the elements of a rank's chunk.
fn combine(
    reduction: &Reduction<'_>,
    ranks: &[Arc<Places>],
    rank: usize,
) -> std::result::Result<(), Problem> {
    let Reduction { across, dtype, places, device, .. } = *reduction;
    let Range { start: mut at, end } = chunk(places.bytes(), rank, ranks.len());
    let mut operands: Vec<_> = ranks.iter().map(|of| Cursor::at(&of.operands, at)).collect();
    let mut results: Vec<_> = ranks.iter().map(|of| Cursor::at(&of.results, at)).collect();
    while at < end {
        let all = operands.iter().chain(&results);
        let len = all.map(Cursor::left).fold(end - at, usize::min);
        let from: Option<Vec<_>> = operands.iter().map(Cursor::place).collect();
        let to: Option<Vec<_>> = results.iter().map(Cursor::place).collect();
        let (Some(from), Some(to)) = (from, to) else {
            return Err(Lost::Broken("the places of ranks have other sizes".to_owned()).into());
        };
        let merged = device.merge(&from, &to, len, &mut |before, own, after| {
            across.combine_in_place(dtype, before, own, after);
        });
        merged.map_err(|error| Lost::Broken(error.to_string()))?;
        operands.iter_mut().chain(&mut results).for_each(|cursor| cursor.advance(len));
        at += len;
    }
    Ok(())
}

/// The bytes that a rank combines, in whole cache lines as far as places begin with one.
fn chunk(bytes: usize, rank: usize, size: usize) -> Range<usize> {
    const LINE: usize = 64;
    let lines = bytes.div_ceil(LINE);
    let cut =
        |rank: usize| ((lines as u128 * rank as u128 / size as u128) as usize * LINE).min(bytes);
    cut(rank)..cut(rank + 1)
}

/// A byte of several spans that follow each other.
struct Cursor<'a> {
    /// This one and those behind it.
    spans: &'a [Span],
    /// How far it is in the first.
    offset: usize,
}

impl<'a> Cursor<'a> {
    fn at(spans: &'a [Span], at: usize) -> Self {
        let mut cursor = Cursor { spans, offset: 0 };
        cursor.advance(at);
        cursor
    }

    fn advance(&mut self, by: usize) {
        self.offset += by;
        while let Some((first, rest)) = self.spans.split_first()
            && self.offset >= first.len
        {
            self.offset -= first.len;
            self.spans = rest;
        }
    }

    /// How many bytes of the span there are from here on.
    fn left(&self) -> usize {
        self.spans.first().map_or(0, |span| span.len - self.offset)
    }

    /// `None` behind the last.
    fn place(&self) -> Option<(&'a Memory, usize)> {
        self.spans.first().map(|span| (&span.memory, span.at + self.offset))
    }
}

/// The same where a rank sends bytes.
fn by_bytes(
    exchanging: &mut Exchanging<Mailbox>,
    reduction: &Reduction<'_>,
    until: Instant,
) -> std::result::Result<(), Problem> {
    let Reduction { across, dtype, places, device, .. } = *reduction;
    let broken = |error: crate::Error| Lost::Broken(error.to_string());
    let mut data = vec![0; places.bytes()];
    let mut at = 0;
    for Span { memory, at: from, len } in &places.operands {
        device.download(memory, *from, &mut data[at..at + len]).map_err(broken)?;
        at += len;
    }
    let data = exchanging.reduce(across, dtype, data, until)?;
    at = 0;
    for Span { memory, at: to, len } in &places.results {
        device.upload(&data[at..at + len], memory, *to).map_err(broken)?;
        at += len;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::{Collective, Group, Label, threads};
    use super::*;
    use crate::device::{Device, Launch, Merging};
    use crate::error::Error;
    use crate::memory::HostMemory;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;
    use tracecast_ir::DType;
    use tracecast_ir::kernel::Kernel;
    use tracecast_ir::op::Across;

    /// Merges memory of the host, after a while.
    #[derive(Debug, Default)]
    struct Merges {
        takes: Duration,
        panics: bool,
        is_done: AtomicBool,
    }

    impl Device for Merges {
        fn name(&self) -> &str {
            "merges"
        }

        fn load(&self, _: &Kernel) -> Result<Box<dyn Launch>> {
            Err(Error::Device("no kernels".to_owned()))
        }

        fn alloc(&self, bytes: usize) -> Result<Memory> {
            Ok(Memory::new(HostMemory::new(bytes)?))
        }

        fn upload(&self, from: &[u8], to: &Memory, at: usize) -> Result<()> {
            to.get::<HostMemory>()?.write(at, from)
        }

        fn download(&self, from: &Memory, at: usize, to: &mut [u8]) -> Result<()> {
            from.get::<HostMemory>()?.read(at, to)
        }

        fn merges(&self) -> bool {
            true
        }

        fn merge(
            &self,
            from: &[(&Memory, usize)],
            to: &[(&Memory, usize)],
            len: usize,
            with: &mut Merging<'_>,
        ) -> Result<()> {
            assert!(!self.panics, "planted");
            std::thread::sleep(self.takes);
            let mut given = vec![vec![0; len]; from.len()];
            for ((memory, at), bytes) in from.iter().zip(&mut given) {
                self.download(memory, *at, bytes)?;
            }
            let mut own = given.remove(0);
            with(&[], &mut own, &given.iter().map(|bytes| &bytes[..]).collect::<Vec<_>>());
            to.iter().try_for_each(|(memory, at)| self.upload(&own, memory, *at))?;
            self.is_done.store(true, Ordering::SeqCst);
            Ok(())
        }
    }

    /// Bytes in two pieces of a memory, and room for as many elsewhere, or there.
    fn places(device: &Merges, bytes: &[u8], cut: usize, in_place: bool) -> Arc<Places> {
        let memory = device.alloc(bytes.len() + 64).unwrap();
        device.upload(&bytes[..cut], &memory, 64).unwrap();
        device.upload(&bytes[cut..], &memory, 64 + cut).unwrap();
        let span = |at, len| Span { memory: memory.clone(), at, len };
        let operands = vec![span(64, cut), span(64 + cut, bytes.len() - cut)];
        let results = match in_place {
            true => operands.clone(),
            false => {
                vec![Span { memory: device.alloc(bytes.len()).unwrap(), at: 0, len: bytes.len() }]
            }
        };
        Arc::new(Places { operands, results })
    }

    fn results(device: &Merges, places: &Places) -> Vec<u8> {
        let read = |span: &Span| {
            let mut bytes = vec![0; span.len];
            device.download(&span.memory, span.at, &mut bytes).unwrap();
            bytes
        };
        places.results.iter().flat_map(read).collect()
    }

    fn reduction<'a>(
        (across, dtype): (Across, DType),
        places: &'a Arc<Places>,
        device: &'a Merges,
    ) -> Reduction<'a> {
        let label = Label { program: 1, step: 2, bucket: 3 };
        Reduction { across, dtype, label, ready: Instant::now(), places, device }
    }

    #[test]
    fn values_are_reduced_where_they_lie_as_bytes_that_are_sent() {
        let dtypes = [DType::F32, DType::F64, DType::F16, DType::BF16];
        for (size, elements) in [(2, 1000), (3, 37), (4, 3), (2, 0)] {
            for (dtype, across) in
                dtypes.into_iter().zip([Across::Sum, Across::Mean, Across::Max, Across::Sum])
            {
                let bytes = elements * dtype.bytes();
                // Numbers of any exponent but the largest.
                let of = |rank: usize| -> Vec<u8> {
                    (0..bytes).map(|i| ((i * 37 + rank * 101) % 251) as u8 & 0x3f).collect()
                };
                let all: Vec<Vec<u8>> = (0..size).map(of).collect();
                let all: Vec<&[u8]> = all.iter().map(|rank| &rank[..]).collect();
                let mut wanted = vec![0; bytes];
                across.combine(dtype, &all, &mut wanted);
                // Of the second round the last rank sends what it has.
                let body = |rank: Group| {
                    let device = Merges::default();
                    let at = rank.rank();
                    for round in 0..3 {
                        let cut = dtype.bytes() * (elements * at / size);
                        let own = places(&device, all[at], cut, (at + round).is_multiple_of(2));
                        if round == 1 && at + 1 == size {
                            let r = reduction((across, dtype), &own, &device);
                            let transfer = Transfer::Reduce { across, dtype };
                            let data = rank.start(transfer, r.label, all[at].to_vec()).unwrap();
                            assert_eq!(rank.wait(data).unwrap().data, wanted);
                            continue;
                        }
                        rank.reduce(&reduction((across, dtype), &own, &device)).unwrap();
                        assert_eq!(
                            results(&device, &own),
                            wanted,
                            "{dtype}, rank {at}, round {round}"
                        );
                    }
                };
                std::thread::scope(|scope| {
                    for rank in threads(size, Duration::from_secs(20)) {
                        scope.spawn(|| body(rank));
                    }
                });
            }
        }
    }

    #[test]
    fn who_gives_up_leaves_when_nobody_works_on_its_memory() {
        let slow = Merges { takes: Duration::from_millis(3500), ..Merges::default() };
        let sum = (Across::Sum, DType::F32);
        let ranks = threads(2, Duration::from_secs(2));
        let run = |rank: &Group, device: &Merges| {
            let places = places(device, &[0; 512], 256, true);
            rank.reduce(&reduction(sum, &places, device))
        };
        std::thread::scope(|scope| {
            let late = scope.spawn(|| run(&ranks[1], &slow));
            let error = run(&ranks[0], &Merges::default()).unwrap_err();
            assert!(slow.is_done.load(Ordering::SeqCst), "it is still at work");
            let Error::Rank { rank: 1, step: 2, bucket: 3, message } = &error else {
                panic!("{error}")
            };
            assert!(message.starts_with("has not answered rank 0"), "{message}");
            // It has what it needs of the other one, and none follows.
            late.join().unwrap().unwrap();
            for rank in &ranks {
                let next = run(rank, &Merges::default()).unwrap_err();
                assert_eq!(next.to_string(), error.to_string());
            }
        });
    }

    #[test]
    fn nobody_begins_to_work_once_a_rank_has_given_up() {
        let table = Table::new(2);
        let device = Merges::default();
        let own = places(&device, &[0; 64], 0, true);
        let _shown = [table.show(0, &own), table.show(1, &own)];
        assert!(table.begin().is_ok_and(|(places, _)| places.len() == 2));
        let failure = |rank| Failure::own(rank, Label::default(), "has failed".to_owned());
        table.refuse(&failure(1));
        table.close(&failure(0));
        let Err(Problem::Failed(why)) = table.begin() else { panic!("one begins") };
        assert_eq!(why, failure(1), "the first counts");
    }

    const SUM: (Across, DType) = (Across::Sum, DType::F32);

    /// What a rank gets for a reduction, and for bytes that it sends after that.
    fn both(rank: &Group) -> [Error; 2] {
        let device = Merges::default();
        let places = places(&device, &[0; 64], 0, true);
        let reduced = rank.reduce(&reduction(SUM, &places, &device));
        let label = Label { program: 9, step: 9, bucket: 9 };
        let sent = rank.start(Transfer::Gather, label, vec![0; 8]);
        [reduced.unwrap_err(), sent.and_then(|sent| rank.wait(sent)).unwrap_err()]
    }

    #[test]
    fn who_has_given_up_takes_no_step_again_and_neither_do_the_others() {
        let label = Label { program: 1, step: 2, bucket: 0 };
        let why = "rank 1 has failed: no such class; in step 2, bucket 0";
        for round in 0..20 {
            let ranks = threads(2, Duration::from_secs(20));
            let start = Instant::now();
            std::thread::scope(|scope| {
                let other = scope.spawn(|| both(&ranks[0]));
                // Its thread waits for something that the other one never does, which keeps it from
                // telling.
                let busy = (round % 2 == 1)
                    .then(|| ranks[1].start(Transfer::Gather, label, vec![0; 8]).unwrap());
                ranks[1].give_up(label, "no such class");
                let told = both(&ranks[1]).map(|error| error.to_string());
                assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
                let [reduced, sent] = other.join().unwrap();
                assert_eq!(sent.to_string(), reduced.to_string(), "the first counts");
                assert_eq!(told[0], told[1], "the first counts");
                match busy {
                    // That it gave up, or that the other one does something else: either may be
                    // found first.
                    Some(busy) => assert!(ranks[1].wait(busy).is_err()),
                    None => assert_eq!([told[0].as_str(), &reduced.to_string()], [why, why]),
                }
            });
        }
    }

    #[test]
    fn who_has_failed_in_one_way_has_failed_in_the_other() {
        let device = Merges::default();
        let places = places(&device, &[0; 64], 0, true);
        let label = Label { program: 1, step: 2, bucket: 0 };
        for reduces_first in [true, false] {
            let ranks = threads(2, Duration::from_millis(50));
            let reduce = || ranks[0].reduce(&reduction(SUM, &places, &device)).map(drop);
            let send = || {
                let sent = ranks[0].start(Transfer::Gather, label, vec![0; 8])?;
                ranks[0].wait(sent).map(drop)
            };
            let first = if reduces_first { reduce() } else { send() }.unwrap_err().to_string();
            assert!(first.starts_with("rank 1 has not answered rank 0"), "{first}");
            let found = [reduce(), send()].map(|done| done.unwrap_err().to_string());
            assert_eq!(found, [&first[..], &first]);
            // The late one finds what the other has sent, and is told all the same.
            assert_eq!(both(&ranks[1])[1].to_string(), both(&ranks[1])[0].to_string());
        }
    }

    #[test]
    fn who_panics_tells_the_others() {
        let ranks = threads(2, Duration::from_secs(20));
        let panics = Merges { panics: true, ..Merges::default() };
        let why = "rank 1 has panicked; in step 2, bucket 3";
        let places = places(&panics, &[0; 64], 0, true);
        std::thread::scope(|scope| {
            let body = || ranks[1].reduce(&reduction(SUM, &places, &panics)).map(drop);
            let panicked =
                scope.spawn(move || std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)));
            for error in both(&ranks[0]) {
                assert_eq!(error.to_string(), why);
            }
            assert!(panicked.join().unwrap().is_err());
            for error in both(&ranks[1]) {
                assert_eq!(error.to_string(), why);
            }
        });
    }

    #[test]
    fn chunks_are_lines_and_cover_all() {
        for (bytes, size) in [(0, 3), (63, 2), (64, 2), (1000, 3), (1 << 20, 7)] {
            let mut end = 0;
            for rank in 0..size {
                let chunk = chunk(bytes, rank, size);
                assert!(chunk.start == end && (chunk.end == bytes || chunk.end.is_multiple_of(64)));
                end = chunk.end;
            }
            assert_eq!(end, bytes);
        }
    }
}
