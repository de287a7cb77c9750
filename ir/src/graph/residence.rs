//! Where values live, as policies see it.
//!
//! A port lives where it says, and so does a constant that says so. Any other constant with an axis
//! lives nowhere yet: it is taken to be where the operands beside it are, as if it had been made
//! there; one without axes is a number on the cpu, as in PyTorch. The results of an op live where
//! its operands do. A cpu operand does not count beside one of another device, which PyTorch allows
//! to tensors without axes alone; here a program says nothing about memory, so nothing has to be
//! moved.

use crate::TensorType;
use crate::graph::{Graph, NodeId};
use crate::policy::DeviceType;

/// A device type, or `None` for a value that lives where those beside it do.
pub(crate) type Residence = Option<DeviceType>;

/// Where a constant lives that was recorded with this device, or with none.
pub(crate) fn of_constant(said: Residence, ty: &TensorType) -> Residence {
    said.or((ty.shape.rank() == 0).then_some(DeviceType::Cpu))
}

/// Where operands live together.
///
/// # Errors
/// Two device types that have nothing to do with each other.
pub(crate) fn together(
    operands: impl IntoIterator<Item = Residence>,
) -> Result<Residence, (DeviceType, DeviceType)> {
    let mut all = None;
    for device in operands.into_iter().flatten() {
        match all {
            None | Some(DeviceType::Cpu) => all = Some(device),
            Some(other) if device == other || device == DeviceType::Cpu => {}
            Some(other) => return Err((other, device)),
        }
    }
    Ok(all)
}

/// [`together`], with the first device for operands that live on several: an op that no policy sees
/// may take such.
pub(crate) fn of_result(operands: impl IntoIterator<Item = Residence>) -> Residence {
    together(operands).unwrap_or_else(|(first, _)| Some(first))
}

/// The device of an operand for an op whose operands live there together.
pub(crate) fn beside(operand: Residence, together: Residence) -> DeviceType {
    operand.or(together).unwrap_or(DeviceType::Cpu)
}

impl Graph {
    /// The device type that each node's results live on, as policies see it: that of its port, or
    /// that of its operands. `None` for what is made of constants alone: it lives where the
    /// operands beside it do.
    pub fn devices(&self) -> Vec<Option<DeviceType>> {
        let mut devices: Vec<Residence> = vec![None; self.len()];
        for port in &self.ports {
            devices[port.node.index()] = Some(port.device.kind);
        }
        for id in self.nodes().filter(|id| self.port_of(*id).is_none()) {
            let (node, args) = (self.node(id), self.args(id));
            devices[id.index()] = match (args.is_empty(), node.results.first()) {
                (true, Some(ty)) => of_constant(node.device.map(|site| site.kind), ty),
                _ => of_result(args.iter().map(|a| devices[a.node.index()])),
            };
        }
        devices
    }

    /// The device type of each flat operand of a node, for which [`Graph::devices`] are `devices`.
    pub fn operand_devices(
        &self,
        devices: &[Option<DeviceType>],
        id: NodeId,
    ) -> impl Iterator<Item = DeviceType> + use<> {
        let operands: Vec<Residence> =
            self.args(id).iter().map(|a| devices[a.node.index()]).collect();
        let all = of_result(operands.iter().copied());
        operands.into_iter().map(move |operand| beside(operand, all))
    }

    /// The same on the first device of each kind: equal for programs that differ in the numbers of
    /// devices alone.
    #[must_use]
    pub fn on_first_devices(&self) -> Graph {
        let mut graph = self.clone();
        graph.ports.iter_mut().for_each(|port| port.device.ordinal = 0);
        let sites = graph.dag.node_weights_mut().filter_map(|node| node.device.as_mut());
        sites.for_each(|site| site.ordinal = 0);
        graph
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use DeviceType::{Cpu, Cuda, Xpu};

    #[test]
    fn the_cpu_gives_way_and_constants_follow() {
        assert_eq!(together([]), Ok(None));
        assert_eq!(together([None, None]), Ok(None));
        assert_eq!(together([Some(Cpu), None]), Ok(Some(Cpu)));
        for order in [[Some(Cpu), Some(Cuda), None], [None, Some(Cuda), Some(Cpu)]] {
            assert_eq!(together(order), Ok(Some(Cuda)));
        }
        assert_eq!(together([Some(Xpu), Some(Cpu), Some(Cuda)]), Err((Xpu, Cuda)));
        assert_eq!(of_result([Some(Xpu), Some(Cuda)]), Some(Xpu));
        assert_eq!((beside(None, Some(Cuda)), beside(Some(Cpu), Some(Cuda))), (Cuda, Cpu));
        assert_eq!(beside(None, None), Cpu);
    }

    #[test]
    fn only_constants_with_axes_follow() {
        let ty = |shape: &[usize]| TensorType::new(crate::DType::F32, shape);
        assert_eq!(of_constant(None, &ty(&[])), Some(Cpu));
        assert_eq!(of_constant(None, &ty(&[1])), None);
        assert_eq!(of_constant(Some(Cuda), &ty(&[])), Some(Cuda));
    }
}
