//! The tool on several ranks: training on threads, programs with collectives, and what it says
//! under `mpirun`.

#![allow(clippy::unwrap_used, reason = "a test says what must hold, in its helpers too")]

use std::process::Command;

use serde_json::Value;

/// Runs the tool: the exit code, standard output and standard error.
fn tool(arguments: &[&str], environment: &[(&str, &str)]) -> (Option<i32>, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tracecast"));
    let output = command.args(arguments).envs(environment.iter().copied()).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[test]
fn ranks_train_as_one_does_and_tell_what_they_exchange() {
    let lines = |ranks: &str| -> Vec<Value> {
        let (code, out, err) =
            tool(&["train", "--epochs", "2", "--json", "--threads", "1", "--ranks", ranks], &[]);
        assert_eq!(code, Some(0), "{err}");
        out.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let one = lines("1");
    assert!(one.iter().all(|line| line.get("ranks").is_none()));
    for ranks in ["2", "3"] {
        let many = lines(ranks);
        assert_eq!(many.len(), one.len());
        for (many, one) in many.iter().zip(&one) {
            assert_eq!(many["ranks"].to_string(), ranks);
            // Both layers in f32, and the loss.
            let parameters = 64 * 128 + 128 + 128 * 10 + 10;
            assert_eq!(many["reduced_bytes"], 4 * (parameters + 1));
            assert!(many["waited_ms"].as_f64().unwrap() >= 0.0);
            let losses = |line: &Value| -> Vec<f64> {
                line["losses"].as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect()
            };
            for (many, one) in losses(many).iter().zip(losses(one)) {
                assert!((many - one).abs() < 1e-3 * one, "{many} for {one} on {ranks} ranks");
            }
            let accuracy = |line: &Value| line["accuracy"].as_f64().unwrap();
            assert!((accuracy(many) - accuracy(one)).abs() < 2.0);
        }
    }
    let (code, table, err) =
        tool(&["train", "--epochs", "1", "--threads", "1", "--ranks", "2"], &[]);
    assert_eq!(code, Some(0), "{err}");
    assert!(table.contains("ranks") && table.contains("waited"), "{table}");
}

#[test]
fn a_profile_shows_when_ranks_exchange_and_what_it_hides_behind() {
    let folder = std::env::temp_dir().join(format!("tracecast-ranks-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join("sum.tc");
    let text = "graph @sum(%x: f32[64, 64]) {
  %0 = exp %x : f32[64, 64]
  %1 = all_reduce %0 {across = \"sum\", ranks = 2} : f32[64, 64]
  %2 = tanh %x : f32[64, 64]
  %3 = contract %2, %x : f32[64, 64]
  %4 = neg %1 : f32[64, 64]
  return y = %4, z = %3
}
";
    std::fs::write(&file, text).unwrap();
    let file = file.to_str().unwrap();
    let (code, table, err) = tool(&["profile", file, "--runs", "3", "--threads", "1"], &[]);
    assert_eq!(code, Some(0), "{err}");
    let line = table.lines().last().unwrap();
    assert!(line.starts_with("all_reduce_0: 16.0 KiB, starts at "), "{table}");
    assert!(
        line.contains("ends at") && line.contains("waited for") && line.contains("hides behind"),
        "{line}"
    );
    assert!(table.contains("all_reduce_0.begin") && table.contains("all_reduce_0.wait"), "{table}");
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn the_tool_has_no_mpi_and_says_so() {
    let (code, _, err) = tool(&["train", "--epochs", "1"], &[("OMPI_COMM_WORLD_SIZE", "2")]);
    assert_eq!(code, Some(1));
    assert!(err.contains("2 processes of mpirun") && err.contains("--ranks 2"), "{err}");
    let (code, _, err) = tool(&["train", "--ranks", "33"], &[]);
    assert_eq!(code, Some(2), "{err}");
}
