//! The commands `merge` and `validate`.

use std::path::Path;

use candle_core::Tensor;

use crate::support::*;

#[test]
fn dry_run_counts_and_fails_when_anything_is_off() {
    let paths = ["vit", "dense", "processor"].map(|name| fixture(name).display().to_string());
    let adapter = fixture("adapter.safetensors").display().to_string();
    let args = arguments(&paths, &["--variant", "dense", "--dry-run"]);
    let good = packd_model(&[&["merge"], args.as_slice(), &["--adapter", &adapter]].concat());
    let out = text(&good.stdout);
    assert_eq!(good.status.code(), Some(0), "{good:?}");
    let counts = "missing_in_model: 0\nshape_mismatch: 0\nuncovered_model_params: 0\n[ViT] loaded=27 missing_in_model=0 \
                  shape_mismatch=0\n[Adapter] loaded=6 missing_in_model=0 shape_mismatch=0\n[LLM] loaded=14";
    assert!(out.starts_with(counts), "{out}");
    let without = packd_model(&[&["merge"], args.as_slice()].concat());
    assert_eq!(without.status.code(), Some(0), "{without:?}");
    assert!(text(&without.stdout).contains("uncovered_model_params: 6\n"), "{without:?}");

    let (_folder, vit) = changed("vit", |all| {
        rename(all, "layernorm_pre.weight", "typo");
        all.remove("encoder._orig_mod.layers.1.self_attn.v_proj.bias");
    });
    let paths = [vit.display().to_string(), paths[1].clone(), paths[2].clone()];
    let args = arguments(&paths, &["--dry-run", "--json"]);
    let bad = packd_model(&[&["merge"], args.as_slice()].concat());
    assert_eq!(bad.status.code(), Some(1), "{bad:?}");
    let report: serde_json::Value = serde_json::from_slice(&bad.stdout).unwrap();
    assert_eq!(report["missing_in_model"], 1);
    assert_eq!(report["uncovered_model_params"], 7);
    let kinds: Vec<_> =
        report["problems"].as_array().unwrap().iter().map(|it| it["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["missing_in_model", "incomplete", "uncovered"]);
}

#[test]
fn the_command_merges_once_and_validates() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("a/merged").display().to_string();
    let paths = ["vit", "moe", "processor"].map(|name| fixture(name).display().to_string());
    let args = [&["merge"], arguments(&paths, &["--out", &out, "--seed", "5"]).as_slice()].concat();
    let done = packd_model(&args);
    assert_eq!(done.status.code(), Some(0), "{done:?}");
    assert!(text(&done.stdout).contains("(moe)"), "{done:?}");
    let again = packd_model(&args);
    assert_eq!(again.status.code(), Some(73), "{again:?}");
    assert!(text(&again.stderr).contains("it exists"), "{again:?}");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let plain = folder.path().join("plain");
        std::fs::write(&plain, "").unwrap();
        assert_eq!(mode(&Path::new(&out).join("model.safetensors")), mode(&plain));
        assert_eq!(mode(Path::new(&out)), mode(folder.path().join("a").as_path()));
    }

    let more = ["--ckpt", &out, "--skip", "vit,llm,e2e"];
    let args = [&["validate"], arguments(&paths, &more).as_slice()].concat();
    let same = packd_model(&args);
    assert_eq!(same.status.code(), Some(0), "{same:?}");
    assert!(text(&same.stdout).contains("6 tensors of the merger have no source"), "{same:?}");
    // A setting that got lost, and queries and keys of one layer swapped.
    let config = Path::new(&out).join("config.json");
    let text_of_it = std::fs::read_to_string(&config).unwrap();
    std::fs::write(&config, text_of_it.replace("\"rope_theta\": 5000.0", "\"rope_theta\": 10000.0")).unwrap();
    let path = Path::new(&out).join("model.safetensors");
    let mut tensors = load(&path);
    let name = "model.visual.encoder.layers.0.self_attn.qkv.weight";
    let thirds = tensors[name].chunk(3, 0).unwrap();
    let swapped = Tensor::cat(&[&thirds[1], &thirds[0], &thirds[2]], 0).unwrap();
    tensors.insert(name.into(), swapped);
    candle_core::safetensors::save(&tensors, &path).unwrap();
    let differs = packd_model(&args);
    assert_eq!(differs.status.code(), Some(1), "{differs:?}");
    let said = text(&differs.stdout);
    assert!(said.contains(&format!("differs {name}")), "{said}");
    let setting = "differs config.json vision_config: rope_theta: 10000.0 (the sources: rope_theta: 5000.0)";
    assert!(said.contains(setting), "{said}");
    assert!(said.contains("; 2 differences"), "{said}");
}
