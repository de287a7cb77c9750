//! Regions of the file: nested, disabled, of two dtypes.

use crate::answers::{Answers, apart, folder, json, named};
use crate::dtypes::{differences, of};
use tracecast::prelude::*;
use tracecast::pt2;
use tracecast::pt2::Exported;

#[test]
fn regions_of_the_file_decide_as_in_pytorch() {
    let all = json("regions.json");
    let mut wrong = Vec::new();
    for (name, recorded) in all.as_object().unwrap() {
        let path = folder().join(format!("regions-{name}.pt2"));
        let exported = Exported::open(&path).unwrap_or_else(|error| panic!("{error}"));
        let (found, _) = of(&exported, None).unwrap();
        let (count, differ) = differences(&found, &recorded["nodes"]);
        println!("{name}: {} of {count} nodes", count - differ.len());
        wrong.extend(differ.into_iter().map(|one| format!("{name}: {one}")));

        let answers = Answers::of(&format!("regions-{name}"));
        let inputs = answers.numbered("in");
        let model = pt2::Model::from(exported);
        let named = named(&model, &inputs);
        let inputs: Vec<(&str, &Tensor)> =
            named.iter().map(|(name, x)| (name.as_str(), *x)).collect();
        let program = model.jit(Options::new());
        let out = program.run(&mut model.store().unwrap(), &inputs).unwrap();
        let full = pt2::open(&path).unwrap().without_regions();
        let full = full.jit(Options::new()).run(&mut full.store().unwrap(), &inputs).unwrap();
        for (at, wanted) in answers.numbered("out").iter().enumerate() {
            let [found, full] =
                [&out, &full].map(|out| out[&format!("output.{at}")].cast(DType::F32).unwrap());
            let wanted = wanted.cast(DType::F32).unwrap();
            let (ours, theirs) = (apart(&found, &wanted), apart(&wanted, &full));
            if ours > 1.5 * theirs + 2e-3 {
                wrong.push(format!(
                    "{name}: output {at} is {ours} from PyTorch's, which is {theirs} from f32"
                ));
            }
        }
        let explained = program.explain(&model.store().unwrap(), &inputs).unwrap().to_string();
        let says = explained.contains(".py:") && explained.contains("torch-cpu");
        if !says {
            wrong.push(format!("{name}: `explain` names no rule or no Python line:\n{explained}"));
        }
    }
    assert!(wrong.is_empty(), "{} of them:\n{}", wrong.len(), wrong.join("\n"));
}
