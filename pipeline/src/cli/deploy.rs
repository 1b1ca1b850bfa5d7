//! `packd deploy`.

use std::process::ExitCode;

use clap::{ArgMatches, Args, Subcommand};
use packd::{DeployOptions, Error, KubernetesOptions, Mount, SlurmOptions, deploy_kubernetes, deploy_slurm};

use super::ConfigArgs;

#[derive(Args)]
pub(crate) struct DeployCommand {
    #[command(subcommand)]
    engine: Engine,
}

#[derive(Subcommand)]
enum Engine {
    /// A script that submits an array of workers and a job that completes the output
    Slurm(Box<SlurmArgs>),
    /// Manifests of an Indexed Job and of a job that completes the output
    Kubernetes(Box<KubernetesArgs>),
}

#[derive(Args)]
struct Common {
    #[command(flatten)]
    config: ConfigArgs,
    /// Name of the jobs
    #[arg(long, value_name = "NAME", default_value = "packd", help_heading = "Engine")]
    name: String,
    /// Cores of each worker
    #[arg(long, value_name = "N", default_value_t = 8, help_heading = "Engine")]
    cpus: u32,
}

#[derive(Args)]
struct SlurmArgs {
    #[command(flatten)]
    common: Common,
    /// Memory of each worker, as Slurm writes it
    #[arg(long, value_name = "SIZE", default_value = "16G", help_heading = "Engine")]
    memory: String,
    /// Partition [default: the cluster's]
    #[arg(long, value_name = "NAME", help_heading = "Engine")]
    partition: Option<String>,
    /// Longest run of a worker, as Slurm writes it
    #[arg(long, value_name = "TIME", default_value = "1-00:00:00", help_heading = "Engine")]
    time: String,
    /// The packd command on the cluster's machines
    #[arg(long, value_name = "PATH", default_value = "packd", help_heading = "Engine")]
    program: String,
}

#[derive(Args)]
struct KubernetesArgs {
    #[command(flatten)]
    common: Common,
    /// Memory of each worker, as Kubernetes writes it
    #[arg(long, value_name = "SIZE", default_value = "16Gi", help_heading = "Engine")]
    memory: String,
    /// Container image (see deploy/Dockerfile)
    #[arg(long, value_name = "IMAGE", help_heading = "Engine")]
    image: String,
    /// A persistent volume claim and where it appears, CLAIM:/PATH or CLAIM:/PATH:ro; repeatable
    #[arg(long, value_name = "MOUNT", help_heading = "Engine")]
    mount: Vec<Mount>,
    /// A secret whose entries become environment variables (AWS_ACCESS_KEY_ID …)
    #[arg(long, value_name = "NAME", help_heading = "Engine")]
    secret: Option<String>,
    /// Service account of the pods, where an object store knows it
    #[arg(long, value_name = "NAME", help_heading = "Engine")]
    service_account: Option<String>,
}

pub(crate) fn run(command: &DeployCommand, matches: &ArgMatches) -> Result<ExitCode, Error> {
    let Some((_, matches)) = matches.subcommand() else { unreachable!("clap requires an engine") };
    let text = match &command.engine {
        Engine::Slurm(args) => {
            let slurm = SlurmOptions {
                partition: args.partition.clone(),
                time: args.time.clone(),
                program: args.program.clone(),
            };
            deploy_slurm(&args.common.config.load(matches)?, &options(&args.common, &args.memory), &slurm)?
        }
        Engine::Kubernetes(args) => {
            let kubernetes = KubernetesOptions {
                image: args.image.clone(),
                mounts: args.mount.clone(),
                secret: args.secret.clone(),
                service_account: args.service_account.clone(),
            };
            let config = args.common.config.load(matches)?;
            deploy_kubernetes(&config, &options(&args.common, &args.memory), &kubernetes)?
        }
    };
    print!("{text}");
    Ok(ExitCode::SUCCESS)
}

fn options(common: &Common, memory: &str) -> DeployOptions {
    DeployOptions { name: common.name.clone(), cpus: common.cpus, memory: memory.to_owned() }
}
