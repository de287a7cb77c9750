//! Matrix products, and distances of vectors.

use super::entry::unless;
use super::table;
use tracecast_ir::Var;
use tracecast_ir::functions as f;
use tracecast_ir::ops::prelude::*;

table! {
    "linear(Tensor input, Tensor weight, Tensor? bias=None) -> Tensor" =>
        (x: tensor, weight: tensor, bias: some_tensor) x.linear(weight, bias);
    "matmul(Tensor self, Tensor other) -> Tensor" => (x: tensor, y: tensor) x.matmul(y);
    "mm(Tensor self, Tensor mat2) -> Tensor" => (x: tensor, y: tensor) x.mm(y);
    "bmm(Tensor self, Tensor mat2) -> Tensor" => (x: tensor, y: tensor) x.bmm(y);
    "mv(Tensor self, Tensor vec) -> Tensor" => (x: tensor, y: tensor) x.mv(y);
    "dot(Tensor self, Tensor tensor) -> Tensor" => (x: tensor, y: tensor) x.dot(y);
    "vdot(Tensor self, Tensor other) -> Tensor" => (x: tensor, y: tensor) x.vdot(y);
    "addmm(Tensor self, Tensor mat1, Tensor mat2, *, Scalar beta=1, Scalar alpha=1) -> Tensor" =>
        (x: tensor, a: tensor, b: tensor, beta: float, alpha: float) x.addmm(a, b, unless(beta, 1.0), unless(alpha, 1.0));
    "addmv(Tensor self, Tensor mat, Tensor vec, *, Scalar beta=1, Scalar alpha=1) -> Tensor" =>
        (x: tensor, a: tensor, b: tensor, beta: float, alpha: float) x.addmv(a, b, unless(beta, 1.0), unless(alpha, 1.0));
    "addr(Tensor self, Tensor vec1, Tensor vec2, *, Scalar beta=1, Scalar alpha=1) -> Tensor" =>
        (x: tensor, a: tensor, b: tensor, beta: float, alpha: float) x.addr(a, b, unless(beta, 1.0), unless(alpha, 1.0));
    "addbmm(Tensor self, Tensor batch1, Tensor batch2, *, Scalar beta=1, Scalar alpha=1) -> Tensor" =>
        (x: tensor, a: tensor, b: tensor, beta: float, alpha: float) x.addbmm(a, b, unless(beta, 1.0), unless(alpha, 1.0));
    "baddbmm(Tensor self, Tensor batch1, Tensor batch2, *, Scalar beta=1, Scalar alpha=1) -> Tensor" =>
        (x: tensor, a: tensor, b: tensor, beta: float, alpha: float) x.baddbmm(a, b, unless(beta, 1.0), unless(alpha, 1.0));
    "outer(Tensor self, Tensor vec2) -> Tensor" => (x: tensor, y: tensor) x.outer(y);
    "inner(Tensor self, Tensor other) -> Tensor" => (x: tensor, y: tensor) x.inner(y);
    "kron(Tensor self, Tensor other) -> Tensor" => (x: tensor, y: tensor) x.kron(y);
    "tensordot(Tensor self, Tensor other, int[] dims_self, int[] dims_other) -> Tensor" =>
        (x: tensor, y: tensor, mine: ints, theirs: ints) x.tensordot(y, &mine, &theirs);
    "einsum(str equation, Tensor[] tensors, *, int[]? path=None) -> Tensor" =>
        (equation: text, xs: tensors) f::einsum(&equation, &xs);
    "bilinear(Tensor input1, Tensor input2, Tensor weight, Tensor? bias=None) -> Tensor" =>
        (x: tensor, y: tensor, weight: tensor, bias: some_tensor) x.bilinear(y, weight, bias);
    "cross(Tensor self, Tensor other, int? dim=None) -> Tensor" =>
        (x: tensor, y: tensor, dim: some_int) x.cross(y, dim.unwrap_or_else(|| first_of_three(x, y)));
    "linalg_cross(Tensor self, Tensor other, *, int dim=-1) -> Tensor" =>
        (x: tensor, y: tensor, dim: int) x.cross(y, dim);
    "linalg_vecdot(Tensor x, Tensor y, *, int dim=-1) -> Tensor" =>
        (x: tensor, y: tensor, dim: int) x.linalg_vecdot(y, dim);
    "linalg_matrix_power(Tensor self, int n) -> Tensor" => (x: tensor, n: int) x.matrix_power(n);
    "linalg_multi_dot(Tensor[] tensors) -> Tensor" => (xs: tensors) f::multi_dot(&xs);
    "cdist(Tensor x1, Tensor x2, float p=2., int? compute_mode=None) -> Tensor" =>
        (x: tensor, y: tensor, p: float) x.cdist(y, p);
    "dist(Tensor self, Tensor other, Scalar p=2) -> Tensor" =>
        (x: tensor, y: tensor, p: float) x.dist(y, p);
    "cosine_similarity(Tensor x1, Tensor x2, int dim=1, float eps=1e-08) -> Tensor" =>
        (x: tensor, y: tensor, dim: int, eps: float) x.cosine_similarity(y, dim, eps);
    "pairwise_distance(Tensor x1, Tensor x2, float p=2., float eps=1e-06, bool keepdim=False) -> Tensor" =>
        (x: tensor, y: tensor, p: float, eps: float, keep: flag) x.pairwise_distance(y, p, eps, keep);
    "diff(Tensor self, int n=1, int dim=-1, Tensor? prepend=None, Tensor? append=None) -> Tensor" =>
        (x: tensor, n: int, dim: int, before: some_tensor, behind: some_tensor) f::diff(x, n, dim, before, behind);
    "renorm(Tensor self, Scalar p, int dim, Scalar maxnorm) -> Tensor" =>
        (x: tensor, p: float, dim: int, most: float) x.renorm(p, dim, most);
}

/// The first axis of three numbers in both.
fn first_of_three(x: Var<'_>, y: Var<'_>) -> i64 {
    (0..x.rank()).find(|axis| x.size(*axis) == 3 && y.size(*axis) == 3).unwrap_or(0) as i64
}
