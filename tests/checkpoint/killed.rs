//! A process that is ended at any moment while it saves leaves a whole checkpoint, and another goes
//! on from it bit for bit.
//!
//! The child saves after every step and is ended by `SIGKILL` at random moments, and at those where
//! its draft is half or wholly written. After each the file has to be, byte for byte, the one that
//! an uninterrupted training would have there; and whatever step a child takes has the loss of the
//! uninterrupted one. `TRACECAST_KILLS` is how often (`benches/kill-and-resume`).

use crate::{Folder, files_in};
use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tracecast::checkpoint::Load;
use tracecast::nn::{Dropout, Linear, Relu, Sequential};
use tracecast::prelude::*;

const CHILD: &str = "TRACECAST_CHECKPOINT_CHILD";
const KILLS: &str = "TRACECAST_KILLS";
/// The steps of the training; a child that has taken them ends.
const STEPS: i64 = 24;
const FILE: &str = "run.safetensors";
const LOG: &str = "log";

/// About a million numbers of state: a file of 4 MB.
fn step() -> TrainStep {
    let model = Sequential::new()
        .then(Linear::new(16, 512))
        .then(Relu)
        .then(Dropout::new(0.2))
        .then(Linear::new(512, 640))
        .then(Relu)
        .then(Linear::new(640, 4));
    TrainStep::new(model, |t, model| model.forward(t.input("x")).cross_entropy(t.input("y")))
        .optimizer(AdamW::new(0.01))
        .autocast("cpu", DType::F16)
        // So large that the first steps are skipped.
        .scaler(ScalerOptions { init_scale: 2f64.powi(40), ..ScalerOptions::default() })
        .build()
        .unwrap()
}

fn done(store: &Store) -> i64 {
    store.get("done").unwrap().item().unwrap()
}

/// Takes a step, saves, and returns the bits of the loss.
fn advance(step: &TrainStep, store: &mut Store, folder: &Path) -> u32 {
    let number = done(store);
    let x = Tensor::randn([8, 16], number as u64).unwrap();
    let y = Tensor::new([8], &[0i64, 1, 2, 3, 3, 2, 1, 0]).unwrap();
    let loss = step.run(store, &[("x", &x), ("y", &y)]).unwrap().loss;
    store.insert("done", Tensor::scalar(number + 1));
    step.save(store, folder.join(FILE)).unwrap();
    loss.to_bits()
}

fn start(step: &TrainStep, folder: &Path) -> Store {
    let mut store = Store::new();
    if folder.join(FILE).exists() {
        step.load(&mut store, folder.join(FILE), &Load::strict()).unwrap();
    } else {
        step.init(&mut store, 3).unwrap();
        store.insert("done", Tensor::scalar(0i64));
    }
    store
}

/// Not a test by itself: what the processes do that are ended.
#[test]
fn child() {
    let Some(folder) = std::env::var_os(CHILD) else { return };
    let folder = Path::new(&folder);
    let mut log = OpenOptions::new().append(true).create(true).open(folder.join(LOG)).unwrap();
    // The line before may have been cut.
    writeln!(log).unwrap();
    let step = step();
    let mut store = start(&step, folder);
    while done(&store) < STEPS {
        let number = done(&store);
        let loss = advance(&step, &mut store, folder);
        writeln!(log, "{number} {loss} .").unwrap();
    }
}

fn spawn(folder: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "killed::child", "--test-threads", "1"])
        .env(CHILD, folder)
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

/// An uninterrupted training: the loss of each step, and a hash of the file after it.
struct Whole {
    losses: Vec<u32>,
    hashes: Vec<u64>,
    size: u64,
}

impl Whole {
    fn new() -> Self {
        let folder = Folder::new();
        let (step, mut whole) = (step(), Whole { losses: Vec::new(), hashes: Vec::new(), size: 0 });
        let mut store = start(&step, &folder.0);
        while done(&store) < STEPS {
            whole.losses.push(advance(&step, &mut store, &folder.0));
            whole.hashes.push(hash(&folder.path(FILE)));
        }
        whole.size = fs::metadata(folder.path(FILE)).unwrap().len();
        assert!(store.get("amp.scale").unwrap().item::<f32>().unwrap() < 1e12, "steps are skipped");
        whole
    }
}

fn hash(path: &Path) -> u64 {
    let bytes = fs::read(path).unwrap();
    bytes.chunks(8).fold(0, |hash: u64, chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        (hash.rotate_left(5) ^ u64::from_le_bytes(word)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    })
}

/// Sizes of the drafts in a folder, by name.
fn drafts(folder: &Path) -> BTreeMap<String, u64> {
    files_in(folder).into_iter().filter(|(name, _)| name.ends_with(".unfinished")).collect()
}

/// When a child is ended.
enum Moment {
    /// After so long.
    After(Duration),
    /// As soon as its draft has bytes, and not yet all of them.
    Writing,
    /// As soon as its draft has all bytes: it is forced to the disk, or renamed.
    Written,
}

/// Ends a child, unless it has ended by itself; true if it was ended.
fn kill(
    mut child: Child,
    moment: &Moment,
    folder: &Path,
    before: &BTreeMap<String, u64>,
    size: u64,
) -> bool {
    let start = Instant::now();
    loop {
        let mut new = drafts(folder).into_iter().filter(|(name, _)| !before.contains_key(name));
        let due = match moment {
            Moment::After(time) => start.elapsed() >= *time,
            Moment::Writing => new.any(|(_, bytes)| bytes > 0 && bytes < size),
            Moment::Written => new.any(|(_, bytes)| bytes == size),
        };
        if let Some(status) = child.try_wait().unwrap() {
            assert!(status.success(), "{status}");
            return false;
        }
        if due {
            child.kill().unwrap();
            return child.wait().unwrap().code().is_none();
        }
        if let Moment::After(time) = moment {
            std::thread::sleep(time.saturating_sub(start.elapsed()).min(Duration::from_millis(1)));
        }
    }
}

/// How many children were ended, and what they were doing.
#[derive(Debug, Default)]
struct Counts {
    kills: usize,
    in_write: usize,
    before_rename: usize,
    trainings: usize,
}

#[test]
fn wherever_a_process_is_ended_training_goes_on_bit_for_bit() {
    let wanted = std::env::var(KILLS).map_or(8, |count| count.parse().unwrap());
    let (whole, folder) = (Whole::new(), Folder::new());
    let first = Instant::now();
    assert!(!kill(spawn(&folder.0), &Moment::After(Duration::MAX), &folder.0, &BTreeMap::new(), 0));
    let longest = first.elapsed();
    check(&folder.0, &whole);
    fs::remove_file(folder.path(FILE)).unwrap();

    let (mut counts, mut dice) = (Counts::default(), 0x2545_f491_4f6c_dd1d_u64);
    for turn in 0.. {
        if counts.kills >= wanted {
            break;
        }
        dice ^= dice << 13;
        dice ^= dice >> 7;
        dice ^= dice << 17;
        // A quarter of an uninterrupted training is long enough for several steps.
        let moment = match turn % 4 {
            0 => Moment::Writing,
            1 => Moment::Written,
            _ => Moment::After(longest.mul_f64((dice >> 11) as f64 / (1_u64 << 53) as f64 * 0.6)),
        };
        let before = drafts(&folder.0);
        let was_killed = kill(spawn(&folder.0), &moment, &folder.0, &before, whole.size);
        counts.kills += usize::from(was_killed);
        let left = drafts(&folder.0).into_iter().find(|(name, _)| !before.contains_key(name));
        match left {
            Some((_, bytes)) if bytes == whole.size => counts.before_rename += 1,
            Some(_) => counts.in_write += 1,
            None => {}
        }
        if check(&folder.0, &whole) == STEPS {
            counts.trainings += 1;
            assert_eq!(
                drafts(&folder.0).len(),
                usize::from(was_killed && !drafts(&folder.0).is_empty())
            );
            fs::remove_file(folder.path(FILE)).unwrap();
        }
    }
    // The last one goes on to the end, and tidies up behind the others.
    assert!(!kill(spawn(&folder.0), &Moment::After(Duration::MAX), &folder.0, &BTreeMap::new(), 0));
    assert_eq!(check(&folder.0, &whole), STEPS);
    assert_eq!(drafts(&folder.0), BTreeMap::new());
    println!(
        "{} processes ended: {} in the midst of writing, {} between the last byte and the rename, {} elsewhere; \
         every file was whole and every resume exact ({} trainings of {STEPS} steps, {} bytes each)",
        counts.kills,
        counts.in_write,
        counts.before_rename,
        counts.kills - counts.in_write - counts.before_rename,
        counts.trainings + 2,
        whole.size
    );
    // In a few turns the system may be too quick for one of the two.
    assert!(counts.in_write + counts.before_rename > 0, "{counts:?}");
    assert!(wanted < 100 || (counts.in_write > 0 && counts.before_rename > 0), "{counts:?}");
}

/// Compares the file, and all steps that were logged, with the uninterrupted training; returns how
/// many steps are done.
fn check(folder: &Path, whole: &Whole) -> i64 {
    let log = fs::read_to_string(folder.join(LOG)).unwrap_or_default();
    for line in log.lines().filter(|line| line.ends_with(" .")) {
        let numbers: Vec<u32> = line.split(' ').filter_map(|word| word.parse().ok()).collect();
        assert_eq!(numbers[1], whole.losses[numbers[0] as usize], "step {}", numbers[0]);
    }
    if !folder.join(FILE).exists() {
        return 0;
    }
    let mut store = Store::new();
    step().load(&mut store, folder.join(FILE), &Load::strict()).unwrap();
    let done = done(&store);
    assert_eq!(hash(&folder.join(FILE)), whole.hashes[done as usize - 1], "after step {done}");
    done
}
