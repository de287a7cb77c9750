//! Files of compiled kernels: there and back, damaged, foreign, and written by many at once.

use super::record::{decode, encode};
use super::*;
use crate::code::object::{Name, Relocation};
use crate::device::{CpuDevice, CpuOptions};
use crate::machine::{InstructionSet, Vectors};
use crate::routines::{Precision, Routine};
use crate::tests::{gelu, inputs, place};
use cranelift::codegen::binemit::Reloc;
use tracecast_ir::kernel::{Function, Kernel, Output};
use tracecast_runtime::{Device, Made, MadeFrom, Memory};

/// A folder of this test's own, gone afterwards.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("tracecast-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        Folder(path)
    }

    fn device(&self, vectors: Vectors) -> CpuDevice {
        let code_cache = Some(self.0.clone());
        CpuDevice::new(CpuOptions {
            threads: Some(1),
            vectors,
            code_cache,
            ..CpuOptions::default()
        })
        .unwrap()
    }

    fn files(&self) -> Vec<PathBuf> {
        fs::read_dir(&self.0).unwrap().map(|entry| entry.unwrap().path()).collect()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// How the kernel's code came to be, and what it gives.
fn run(device: &CpuDevice, kernel: &Kernel) -> (Made, Vec<Vec<u8>>) {
    let made = device.load(kernel).unwrap().made().unwrap().clone();
    let placed = place(device, kernel, &inputs(kernel, 3, false));
    placed.bound.run().unwrap();
    let bytes = |(output, memory): (&Output, &Memory)| {
        let mut bytes = vec![0; output.ty.bytes().get()];
        device.download(memory, 0, &mut bytes).unwrap();
        bytes
    };
    (made, kernel.outputs.iter().zip(&placed.outputs).map(bytes).collect())
}

#[test]
fn code_from_a_file_is_the_code_that_was_written() {
    for (number, vectors) in Vectors::ALL.into_iter().enumerate() {
        let folder = Folder::new(&format!("round-trip-{vectors}"));
        let device = folder.device(vectors);
        // Routines, vector loops, and library functions on the portable path.
        let kernel = gelu(1009 + number);
        let (first, expected) = run(&device, &kernel);
        assert_eq!((first.from, first.warning), (MadeFrom::Compiler, None));
        assert_eq!(folder.files().len(), 1);
        let (second, found) = run(&device, &kernel);
        assert_eq!((second.from, second.bytes), (MadeFrom::Disk, first.bytes));
        assert_eq!(found, expected);
        let launch = device.load(&kernel).unwrap();
        assert_eq!(device.load(&kernel).unwrap().made().unwrap().from, MadeFrom::Process);
        drop(launch);
        // Code with other vectors is other code.
        let mut known = vec![InstructionSet::of(vectors)];
        for other in Vectors::ALL.into_iter().filter(|_| cfg!(not(feature = "portable"))) {
            if !known.contains(&InstructionSet::of(other)) {
                known.push(InstructionSet::of(other));
                let made = run(&folder.device(other), &kernel).0;
                assert_eq!(made.from, MadeFrom::Compiler, "{other}");
            }
        }
    }
}

#[test]
fn a_damaged_file_is_compiled_again_and_replaced() {
    let folder = Folder::new("damaged");
    let device = folder.device(Vectors::Native);
    let kernel = gelu(2003);
    let (_, expected) = run(&device, &kernel);
    let path = folder.files().pop().unwrap();
    let good = fs::read(&path).unwrap();
    let damages: [(&str, Vec<u8>); 5] = [
        ("checksum", good.iter().enumerate().map(|(i, b)| b ^ u8::from(i == 500)).collect()),
        ("checksum", good[..good.len() - 7].to_vec()),
        ("cut off", good[..20].to_vec()),
        ("format", Vec::new()),
        ("format", b"tracecast code 0\nof an older time, when there was no checksum".to_vec()),
    ];
    for (says, bytes) in damages {
        fs::write(&path, bytes).unwrap();
        let (made, found) = run(&device, &kernel);
        assert_eq!((made.from, &found), (MadeFrom::Compiler, &expected));
        let warning = made.warning.unwrap();
        assert!(warning.contains(says) && warning.contains(".code"), "{warning}");
        assert_eq!(run(&device, &kernel).0.from, MadeFrom::Disk);
    }
    // The file of another kernel under this one's name.
    let other = gelu(2011);
    run(&device, &other);
    let its = folder.files().into_iter().find(|file| *file != path).unwrap();
    fs::copy(its, &path).unwrap();
    assert!(run(&device, &kernel).0.warning.unwrap().contains("another kernel"));
}

#[test]
fn no_changed_byte_goes_unnoticed() {
    let folder = Folder::new("bytes");
    let kernel = gelu(3001);
    run(&folder.device(Vectors::Native), &kernel);
    let good = fs::read(folder.files().pop().unwrap()).unwrap();
    let key_of = |bytes: &[u8]| {
        let length = u64::from_le_bytes(bytes[17..25].try_into().unwrap()) as usize;
        bytes[25..25 + length].to_vec()
    };
    let key = key_of(&good);
    let functions = decode(&good, &key).unwrap();
    assert_eq!(encode(&key, &functions).unwrap(), good);
    for at in 0..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 1 << (at % 8);
        assert!(decode(&bad, &key).is_err(), "byte {at}");
        assert!(at % 31 != 0 || decode(&good[..at], &key).is_err(), "cut at {at}");
    }
    assert!(decode(&good, &[&key[..], b" "].concat()).unwrap_err().contains("version"));
}

#[test]
fn what_a_right_checksum_covers_still_has_to_make_sense() {
    let function = |offset, align| Object {
        bytes: vec![0xc3; 16],
        align,
        relocations: vec![Relocation {
            offset,
            kind: Reloc::Abs8,
            name: Name::Routine(Routine::Function(Function::Exp, Precision::Single)),
            addend: 0,
        }],
        loops: vec![vec![0xc3]],
        scratch: 64,
    };
    let there_and_back = |object: Object| decode(&encode(b"k", &[object]).unwrap(), b"k");
    assert!(there_and_back(function(8, 16)).is_ok());
    assert!(there_and_back(function(9, 16)).is_err(), "a relocation beyond the code");
    assert!(there_and_back(function(8, 3)).is_err(), "no such alignment");
    let relative = Relocation { kind: Reloc::X86PCRel4, ..function(8, 16).relocations[0].clone() };
    assert_eq!(encode(b"k", &[Object { relocations: vec![relative], ..function(8, 16) }]), None);
}

#[cfg(unix)]
#[test]
fn what_others_could_have_written_is_not_run() {
    use std::os::unix::fs::PermissionsExt;
    let folder = Folder::new("others");
    let device = folder.device(Vectors::Native);
    let kernel = gelu(4001);
    run(&device, &kernel);
    let path = folder.files().pop().unwrap();
    let mode = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode));
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    mode(&path, 0o662).unwrap();
    let made = run(&device, &kernel).0;
    assert_eq!(made.from, MadeFrom::Compiler);
    assert!(made.warning.unwrap().contains("others may write"));
    let other = Disk { user: device_user(&folder.0) + 1, ..Disk::open(&folder.0).unwrap() };
    let key = b"a key";
    other.store(key, &[]).unwrap();
    assert!(matches!(other.load(key), Found::Refused(why) if why.contains("belongs to user")));
    mode(&folder.0, 0o777).unwrap();
    assert!(Disk::open(&folder.0).unwrap_err().contains("others may write"));
    mode(&folder.0, 0o700).unwrap();
    fs::create_dir(folder.0.join("nested")).unwrap();
    fs::write(folder.0.join("file"), "").unwrap();
    assert!(Disk::open(&folder.0.join("file")).is_err());
}

#[cfg(unix)]
fn device_user(path: &Path) -> u32 {
    std::os::unix::fs::MetadataExt::uid(&fs::metadata(path).unwrap())
}

#[test]
fn many_may_write_at_once() {
    let folder = Folder::new("crowd");
    let disk = Disk::open(&folder.0).unwrap();
    let objects = |n: u8| {
        vec![Object {
            bytes: vec![n; 5000],
            align: 16,
            relocations: Vec::new(),
            loops: Vec::new(),
            scratch: 0,
        }]
    };
    std::thread::scope(|scope| {
        for n in 0..4 {
            let (disk, objects) = (&disk, &objects);
            scope.spawn(move || {
                for _ in 0..50 {
                    disk.store(b"key", &objects(n)).unwrap();
                    let Found::Functions(found) = disk.load(b"key") else { panic!("torn") };
                    assert!((0..4).any(|n| found == objects(n)));
                }
            });
        }
    });
    assert_eq!(folder.files().len(), 1);
}

#[test]
fn what_was_used_longest_ago_makes_room() {
    let folder = Folder::new("room");
    let disk = Disk::open(&folder.0).unwrap();
    let object = || Object {
        bytes: vec![0xc3; 16],
        align: 16,
        relocations: Vec::new(),
        loops: vec![vec![1; 1000]],
        scratch: 0,
    };
    let hours_ago = |path: &Path, hours: u64| {
        let file = OpenOptions::new().write(true).open(path).unwrap();
        file.set_modified(SystemTime::now() - std::time::Duration::from_secs(3600 * hours))
            .unwrap();
    };
    for i in 0..8 {
        disk.store(format!("kernel {i}").as_bytes(), &[object()]).unwrap();
        hours_ago(&disk.path(format!("kernel {i}").as_bytes()), 20 - i);
    }
    let (foreign, left, fresh) = ("notes.txt", "1-1.unfinished", "1-2.unfinished");
    for name in [foreign, left, fresh] {
        fs::write(folder.0.join(name), [0; 5000]).unwrap();
    }
    hours_ago(&folder.0.join(left), 2);
    let there = || {
        (0..8).filter(|i| disk.path(format!("kernel {i}").as_bytes()).exists()).collect::<Vec<_>>()
    };
    let size = fs::metadata(disk.path(b"kernel 0")).unwrap().len();
    evict::tidy(&folder.0, 8 * size);
    assert_eq!(there().len(), 8);
    // Using the oldest makes it the newest.
    assert!(matches!(disk.load(b"kernel 0"), Found::Functions(_)));
    evict::tidy(&folder.0, 8 * size - 4);
    assert_eq!(there(), [0, 4, 5, 6, 7]);
    let is_there = |name: &str| folder.0.join(name).exists();
    assert!(is_there(foreign) && is_there(fresh) && !is_there(left));
}

/// A pipe in the place of a file is neither waited for nor kept.
#[cfg(unix)]
#[test]
fn a_pipe_in_the_place_of_code_is_refused_and_replaced() {
    let folder = Folder::new("pipe");
    let device = folder.device(Vectors::Native);
    let kernel = gelu(1013);
    let (_, expected) = run(&device, &kernel);
    let path = folder.files().pop().unwrap();
    fs::remove_file(&path).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
    let (made, found) = run(&folder.device(Vectors::Native), &kernel);
    assert_eq!((made.from, found), (MadeFrom::Compiler, expected.clone()));
    assert!(made.warning.unwrap().contains("is not a file"));
    assert!(fs::metadata(&path).unwrap().is_file());
    let (made, found) = run(&folder.device(Vectors::Native), &kernel);
    assert_eq!((made.from, found), (MadeFrom::Disk, expected));
}
