//! Comparisons, searches and orders.

use super::table;
use tracecast_ir::ops::prelude::*;
use tracecast_ir::{DType, Var};

table! {
    "eq.Scalar(Tensor self, Scalar other) -> Tensor" => (x: tensor, y: operand) x.eq(y);
    "eq.Tensor(Tensor self, Tensor other) -> Tensor" => (x: tensor, y: operand) x.eq(y);
    "ne.Scalar(Tensor self, Scalar other) -> Tensor" => (x: tensor, y: operand) x.ne(y);
    "ne.Tensor(Tensor self, Tensor other) -> Tensor" => (x: tensor, y: operand) x.ne(y);
    "lt.Scalar(Tensor self, Scalar other) -> Tensor" => (x: tensor, y: operand) x.lt(y);
    "lt.Tensor(Tensor self, Tensor other) -> Tensor" => (x: tensor, y: operand) x.lt(y);
    "le.Scalar(Tensor self, Scalar other) -> Tensor" => (x: tensor, y: operand) x.le(y);
    "le.Tensor(Tensor self, Tensor other) -> Tensor" => (x: tensor, y: operand) x.le(y);
    "gt.Scalar(Tensor self, Scalar other) -> Tensor" => (x: tensor, y: operand) x.gt(y);
    "gt.Tensor(Tensor self, Tensor other) -> Tensor" => (x: tensor, y: operand) x.gt(y);
    "ge.Scalar(Tensor self, Scalar other) -> Tensor" => (x: tensor, y: operand) x.ge(y);
    "ge.Tensor(Tensor self, Tensor other) -> Tensor" => (x: tensor, y: operand) x.ge(y);
    "equal(Tensor self, Tensor other) -> bool" => (x: tensor, y: tensor) x.equal(y);
    "isclose(Tensor self, Tensor other, float rtol=1e-05, float atol=1e-08, bool equal_nan=False) -> Tensor" =>
        (x: tensor, y: tensor, relative: float, absolute: float, nan: flag) x.isclose(y, relative, absolute, nan);
    "allclose(Tensor self, Tensor other, float rtol=1e-05, float atol=1e-08, bool equal_nan=False) -> bool" =>
        (x: tensor, y: tensor, relative: float, absolute: float, nan: flag) x.isclose(y, relative, absolute, nan).all_hold();
    "isin.Tensor_Tensor(Tensor elements, Tensor test_elements, *, bool assume_unique=False, bool invert=False) -> Tensor" =>
        (x: tensor, of: tensor, _unique: any, invert: flag) x.isin(of, invert);
    "bucketize.Tensor(Tensor self, Tensor boundaries, *, bool out_int32=False, bool right=False) -> Tensor" =>
        (x: tensor, boundaries: tensor, narrow: flag, right: flag) narrowed(x.bucketize(boundaries, right), narrow);
    "searchsorted.Tensor(Tensor sorted_sequence, Tensor self, *, bool out_int32=False, bool right=False, str? side=None, Tensor? sorter=None) -> Tensor" =>
        (sorted: tensor, x: tensor, narrow: flag, right: flag, side: some_text, sorter: some_tensor) narrowed(sorted.searchsorted(x, sorter, right || side.as_deref() == Some("right")), narrow);
    "sort(Tensor self, int dim=-1, bool descending=False) -> (Tensor values, Tensor indices)" =>
        (x: tensor, dim: int, descending: flag) x.sort(dim, descending);
    "sort.stable(Tensor self, *, bool? stable, int dim=-1, bool descending=False) -> (Tensor values, Tensor indices)" =>
        (x: tensor, _stable: any, dim: int, descending: flag) x.sort(dim, descending);
    "argsort(Tensor self, int dim=-1, bool descending=False) -> Tensor" =>
        (x: tensor, dim: int, descending: flag) x.argsort(dim, descending);
    "argsort.stable(Tensor self, *, bool stable, int dim=-1, bool descending=False) -> Tensor" =>
        (x: tensor, _stable: any, dim: int, descending: flag) x.argsort(dim, descending);
    "msort(Tensor self) -> Tensor" => (x: tensor) x.msort();
    "topk(Tensor self, SymInt k, int dim=-1, bool largest=True, bool sorted=True) -> (Tensor values, Tensor indices)" =>
        (x: tensor, k: int, dim: int, largest: flag) x.topk(k, dim, !largest);
    "kthvalue(Tensor self, SymInt k, int dim=-1, bool keepdim=False) -> (Tensor values, Tensor indices)" =>
        (x: tensor, k: int, dim: int, keep: flag) x.kthvalue(k, dim.kept(keep));
}

fn narrowed(places: Var<'_>, narrow: bool) -> Var<'_> {
    if narrow { places.to(DType::I32) } else { places }
}
