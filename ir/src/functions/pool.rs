//! Pooling that PyTorch composes of other pooling.

use super::named;
use crate::Var;
use crate::ops::elementwise::Elementwise;
use crate::ops::pool::Pools;
use crate::ops::power::Powers;

impl<'t> Var<'t> {
    /// The `p`-th root of the sum of the `p`-th powers of what each window sees, over as many axes
    /// as `kernel_size` has numbers:
    /// [`torch.nn.functional.lp_pool2d`](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.lp_pool2d.html).
    /// Where that sum is negative its root is taken as zero. An empty `stride` is the size.
    #[track_caller]
    pub fn lp_pool(self, p: f64, kernel_size: &[i64], stride: &[i64], ceil_mode: bool) -> Var<'t> {
        named(self, "lp_pool", || {
            let powers = self.pow(p);
            let mean = match kernel_size.len() {
                1 => powers.avg_pool1d(kernel_size, stride, [0], ceil_mode, true),
                2 => powers.avg_pool2d(kernel_size, stride, [0], ceil_mode, true, None),
                3 => powers.avg_pool3d(kernel_size, stride, [0], ceil_mode, true, None),
                axes => return Err(format!("takes windows of 1 to 3 axes, found {axes}")),
            };
            let count: f64 = kernel_size.iter().map(|n| *n as f64).product();
            let sum = mean.sign().mul(mean.abs().relu()).mul(count);
            Ok(sum.pow(1.0 / p))
        })
    }

    /// As [`max_unpool2d`](Pools::max_unpool2d) over one axis.
    #[track_caller]
    pub fn max_unpool1d(self, indices: Var<'t>, output_size: i64) -> Var<'t> {
        named(self, "max_unpool1d", || {
            if !(2..=3).contains(&self.rank()) {
                return Err("takes channels with positions".to_owned());
            }
            let [x, indices] = [self, indices].map(|v| v.unsqueeze(-2));
            Ok(x.max_unpool2d(indices, [1, output_size]).squeeze(&[-2]))
        })
    }
}
