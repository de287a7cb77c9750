//! Functions that policies know by a name of their own: each is asked for by it, and cast as one
//! whole.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::path::Path;
use tracecast_ir::functions::{PadMode, einsum, stack};
use tracecast_ir::ops::find;
use tracecast_ir::policy::{DeviceType, PolicyTable, Region};
use tracecast_ir::{DType, Role, TensorType, Tracer, Var};

use DType::{BF16, F16, F32};

/// Functions that are not asked for by the name that tables list, and the op whose policy, in every
/// table that lists the function, is the same: what comes of the function is what comes of that op.
const BY_ANOTHER_OP: &[(&str, &str, &str)] = &[
    ("linalg_multi_dot", "multi_dot", "matmul"),
    ("linalg_matrix_norm", "matrix_norm", "linalg_vector_norm"),
];

/// The functions that are no ops, by their names in the sources.
fn functions() -> BTreeSet<String> {
    let mut left = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("src/functions")];
    let mut names = BTreeSet::new();
    while let Some(path) = left.pop() {
        if path.is_dir() {
            left.extend(std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()));
            continue;
        }
        let text = std::fs::read_to_string(path).unwrap();
        for line in text.lines() {
            let Some(rest) = line.trim_start().strip_prefix("pub fn ") else { continue };
            let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap();
            names.insert(rest[..end].to_owned());
        }
    }
    assert!(names.len() > 150, "{names:?}");
    names
}

/// What a name of PyTorch may be called here.
fn called(name: &str) -> [&str; 3] {
    let without = |prefix| name.strip_prefix(prefix).unwrap_or(name);
    [name, without("linalg_"), without("_")]
}

#[test]
fn every_function_that_a_table_lists_is_asked_for_by_its_name() {
    let functions = functions();
    let mut excused = BTreeSet::new();
    let mut asked = BTreeSet::new();
    for table in PolicyTable::built_in() {
        for (key, policy) in table.iter() {
            let name = key.split_once('.').map_or(key, |(name, _)| name);
            let Some(function) = called(name).into_iter().find(|n| functions.contains(*n)) else {
                continue;
            };
            if find(name).is_some_and(|op| op.dispatch.is_seen()) {
                asked.insert(name.to_owned());
                continue;
            }
            let other = BY_ANOTHER_OP.iter().find(|(of, by, _)| *of == name && *by == function);
            let (_, _, op) = other.unwrap_or_else(|| panic!("`{function}` is listed as {name}"));
            let (others, _) = table.get(op, "").expect("listed as well");
            assert_eq!(others, policy, "{key} and {op} in {}", table.name());
            excused.insert(name.to_owned());
        }
    }
    assert_eq!(excused.len(), BY_ANOTHER_OP.len(), "{excused:?}");
    let wanted =
        ["bilinear", "cross", "einsum", "native_layer_norm", "stack", "tensordot", "trace"];
    assert!(wanted.iter().all(|name| asked.contains(*name)), "{asked:?}");
}

/// The dtypes that come of `record` on operands of these types in a region, and the ops that it
/// records.
fn in_region(
    device: DeviceType,
    low: DType,
    operands: &[(DType, &[usize])],
    record: &dyn for<'t> Fn(&[Var<'t>]) -> Vec<Var<'t>>,
) -> (Vec<DType>, Vec<String>) {
    let t = Tracer::new("listed");
    let port = |(i, (dtype, shape)): (usize, &(DType, &[usize]))| {
        t.port(&format!("x{i}"), TensorType::new(*dtype, *shape), Role::Input, false, device)
    };
    let xs: Vec<Var<'_>> = operands.iter().enumerate().map(port).collect();
    let region = Region::default().with_device(device, true, low);
    let dtypes = t.in_region(&region, || record(&xs)).iter().map(|y| y.dtype()).collect();
    assert_eq!(t.error(), None);
    let ops = t.with_graph(|g| {
        let recorded = g.nodes().filter(|id| g.port_of(*id).is_none());
        recorded.map(|id| g.node(id).op.name().text().to_owned()).collect()
    });
    (dtypes, ops)
}

#[test]
fn a_listed_function_is_cast_as_one_op() {
    let (cpu, cuda) = (DeviceType::Cpu, DeviceType::Cuda);
    let image: &[usize] = &[1, 2, 4, 4];
    type Record = dyn for<'t> Fn(&[Var<'t>]) -> Vec<Var<'t>>;
    type Case<'a> =
        (&'a str, DeviceType, DType, &'a [(DType, &'a [usize])], &'a Record, &'a [DType]);
    let cases: &[Case<'_>] = &[
        // As recorded: `cpu/reflection_pad2d/0/low/bf16` and others of that file.
        (
            "reflection_pad2d",
            cpu,
            BF16,
            &[(BF16, image)],
            &|x| vec![x[0].pad_last(&[1; 4], PadMode::Reflect)],
            &[F32],
        ),
        (
            "replication_pad1d",
            cpu,
            BF16,
            &[(BF16, &[2, 3, 4])],
            &|x| vec![x[0].pad_last(&[1; 2], PadMode::Replicate)],
            &[F32],
        ),
        ("trace", cpu, BF16, &[(BF16, &[3, 3])], &|x| vec![x[0].trace()], &[F32]),
        ("stack", cpu, BF16, &[(BF16, &[2]), (F32, &[2])], &|x| vec![stack(x, 0)], &[F32]),
        (
            "tensordot",
            cuda,
            F16,
            &[(F32, &[3, 4]), (F32, &[4, 3])],
            &|x| vec![x[0].tensordot(x[1], &[1], &[0])],
            &[F32],
        ),
        (
            "tensordot",
            cuda,
            F16,
            &[(F16, &[3, 4]), (F32, &[4, 3])],
            &|x| vec![x[0].tensordot(x[1], &[1], &[0])],
            &[F32],
        ),
        ("einsum", cuda, F16, &[(F32, &[4])], &|x| vec![einsum("i->", x)], &[F16]),
        (
            "einsum",
            cuda,
            F16,
            &[(F32, &[3, 4]), (F32, &[4, 3])],
            &|x| vec![einsum("ij,jk", x)],
            &[F16],
        ),
        (
            "bilinear",
            cuda,
            F16,
            &[(F32, &[2, 3]), (F16, &[2, 3]), (F16, &[1, 3, 3])],
            &|x| vec![x[0].bilinear(x[1], x[2], None)],
            &[F32],
        ),
        ("cross", cuda, F16, &[(F16, &[3]), (F32, &[3])], &|x| vec![x[0].cross(x[1], 0)], &[F32]),
        (
            "native_layer_norm",
            cuda,
            F16,
            &[(F16, &[2, 3])],
            &|x| x[0].native_layer_norm(&[3], None, None, 1e-5),
            &[F32; 3],
        ),
    ];
    for (op, device, low, operands, record, expected) in cases {
        let (dtypes, ops) = in_region(*device, *low, operands, record);
        assert_eq!(
            (&dtypes[..], &ops[..]),
            (*expected, &[(*op).to_owned()][..]),
            "{op} on {device}"
        );
    }
}

#[test]
fn where_no_table_lists_a_function_its_parts_are_asked() {
    let operands: &[(DType, &[usize])] = &[(F32, &[3, 4]), (F32, &[4, 3])];
    let (dtypes, ops) = in_region(DeviceType::Cpu, BF16, operands, &|x| {
        vec![x[0].tensordot(x[1], &[1], &[0]), einsum("ij,jk->ik", x)]
    });
    assert_eq!(dtypes, [BF16, BF16]);
    assert!(ops.iter().all(|op| op != "tensordot" && op != "einsum"), "{ops:?}");
    assert!(ops.contains(&"mm".to_owned()) && ops.contains(&"bmm".to_owned()), "{ops:?}");
}
