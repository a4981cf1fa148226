//! A kubelet in small: makes containers of a pod's specification, and runs them with crun.
//!
//! What it takes over: command, arguments, environment, volumes (hostPath, emptyDir, configMap), rights, the read-only root, hostPID,
//! the init containers before the others, one network namespace for a pod. What stands in for the rest: one root directory for
//! all images, whose entry point is the container's name for it ([`ENTRY_POINTS`]).

use harness::network::Network;
use harness::process::{Output, Proc};
use harness::{Result, fail};
use k8s_openapi::api::core::v1::{ConfigMap, Container, PodSpec};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// What an image starts where a pod says arguments only.
const ENTRY_POINTS: [(&str, &str); 1] = [("redis", "redis-server")];

/// As container engines give them to whoever asks for none.
const USUAL_RIGHTS: [&str; 11] = [
    "CHOWN",
    "DAC_OVERRIDE",
    "FSETID",
    "FOWNER",
    "NET_RAW",
    "SETGID",
    "SETUID",
    "SETPCAP",
    "NET_BIND_SERVICE",
    "SYS_CHROOT",
    "KILL",
];

/// What is one for all pods of a node.
pub(crate) struct Node {
    /// Below it everything is made.
    pub(crate) scratch: PathBuf,
    /// The root directory of all images.
    pub(crate) image: PathBuf,
    /// Places on the node that pods mount, and where they are here.
    pub(crate) host_paths: BTreeMap<String, PathBuf>,
    pub(crate) configs: Vec<ConfigMap>,
}

/// Who a container is, besides what its pod says.
pub(crate) struct Place<'a> {
    pub(crate) pod: &'a str,
    pub(crate) network: &'a Network,
    /// The first of the node's users that are the container's; without one it has the node's own.
    pub(crate) users: Option<u32>,
}

/// A container that runs. Its processes end when this is dropped.
pub(crate) struct Running {
    name: String,
    state: PathBuf,
    pub(crate) process: Proc,
}

impl Node {
    /// Runs the init containers of a pod to their ends.
    pub(crate) fn prepare(&self, spec: &PodSpec, place: &Place) -> Result<()> {
        for container in spec.init_containers.iter().flatten() {
            self.start(spec, container, place)?.end(Duration::from_secs(10))?.ok()?;
        }
        Ok(())
    }

    /// Starts one of a pod's containers.
    pub(crate) fn start(&self, spec: &PodSpec, container: &Container, place: &Place) -> Result<Running> {
        let name = format!("{}-{}", place.pod, container.name);
        let bundle = self.scratch.join(&name);
        std::fs::create_dir_all(&bundle)?;
        let config = self.config(spec, container, place)?;
        std::fs::write(bundle.join("config.json"), serde_json::to_vec_pretty(&config)?)?;
        let state = self.scratch.join("crun");
        let mut command = crun(&state);
        command.args(["run", "--bundle"]).arg(&bundle).arg(&name).stdin(Stdio::null());
        let process = Proc::start(&mut command, &name, &self.scratch)?;
        Ok(Running { name, state, process })
    }

    /// The runtime's specification of a container.
    fn config(&self, spec: &PodSpec, container: &Container, place: &Place) -> Result<Value> {
        let mut namespaces = vec![
            json!({"type": "mount"}),
            json!({"type": "ipc"}),
            json!({"type": "uts"}),
            json!({"type": "network", "path": place.network.path()}),
        ];
        if spec.host_pid != Some(true) {
            namespaces.push(json!({"type": "pid"}));
        }
        let mut mapping = json!([]);
        if let Some(first) = place.users {
            namespaces.push(json!({"type": "user"}));
            mapping = json!([{"containerID": 0, "hostID": first, "size": 65536}]);
        }
        let linux = json!({"namespaces": namespaces, "uidMappings": mapping, "gidMappings": mapping});
        let security = container.security_context.clone().unwrap_or_default();
        let rights = rights(container);
        let environment = container.env.iter().flatten();
        let environment: Vec<String> = environment
            .map(|variable| format!("{}={}", variable.name, variable.value.clone().unwrap_or_default()))
            .chain(["PATH=/usr/sbin:/usr/bin:/sbin:/bin".to_owned()])
            .collect();
        Ok(json!({
            "ociVersion": "1.0.0",
            "hostname": place.pod,
            "process": {
                "terminal": false,
                "user": {"uid": security.run_as_user.unwrap_or(0), "gid": 0},
                "args": arguments(container)?,
                "env": environment,
                "cwd": "/",
                "noNewPrivileges": security.allow_privilege_escalation == Some(false),
                "capabilities": {"bounding": rights, "effective": rights, "permitted": rights},
            },
            "root": {"path": self.image, "readonly": security.read_only_root_filesystem == Some(true)},
            "mounts": self.mounts(spec, container, place)?,
            "linux": linux,
        }))
    }

    fn mounts(&self, spec: &PodSpec, container: &Container, place: &Place) -> Result<Vec<Value>> {
        let mut mounts = vec![
            json!({"destination": "/proc", "type": "proc", "source": "proc"}),
            json!({"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755"]}),
            json!({"destination": "/run", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755"]}),
            json!({"destination": "/tmp", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=1777"]}),
        ];
        for mount in container.volume_mounts.iter().flatten() {
            let source = self.volume(spec, &mount.name, place)?;
            // A container's own root may not make it in the image.
            std::fs::create_dir_all(self.image.join(mount.mount_path.trim_start_matches('/')))?;
            let access = if mount.read_only == Some(true) { "ro" } else { "rw" };
            mounts.push(json!({
                "destination": mount.mount_path, "type": "bind", "source": source,
                "options": ["bind", access, "nosuid", "nodev"],
            }));
        }
        Ok(mounts)
    }

    /// Where a pod's volume is; made if need be.
    fn volume(&self, spec: &PodSpec, name: &str, place: &Place) -> Result<PathBuf> {
        let Some(volume) = spec.volumes.iter().flatten().find(|volume| volume.name == name) else {
            fail!("there is no volume {name}");
        };
        if let Some(host_path) = &volume.host_path {
            return match self.host_paths.get(&host_path.path) {
                Some(path) => Ok(path.clone()),
                None => fail!("the node has no {}", host_path.path),
            };
        }
        let path = self.scratch.join(format!("{}-volume-{name}", place.pod));
        std::fs::create_dir_all(&path)?;
        if let Some(wanted) = &volume.config_map {
            let found =
                self.configs.iter().find(|config| config.metadata.name.as_ref() == Some(&wanted.name));
            let Some(config) = found else { fail!("there is no ConfigMap {}", wanted.name) };
            for (file, text) in config.data.iter().flatten() {
                std::fs::write(path.join(file), text)?;
            }
        } else if volume.empty_dir.is_some() {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o777))?;
        } else {
            fail!("{name}: a volume of a kind that is not known here");
        }
        Ok(path)
    }
}

fn arguments(container: &Container) -> Result<Vec<String>> {
    let entry_point = ENTRY_POINTS.iter().find(|(name, _)| *name == container.name);
    let usual = entry_point.map(|(_, program)| vec![program.to_string()]);
    let Some(mut arguments) = container.command.clone().or(usual) else {
        fail!("{}: what does its image start?", container.name);
    };
    arguments.extend(container.args.iter().flatten().cloned());
    Ok(arguments)
}

fn rights(container: &Container) -> Vec<String> {
    let asked = container.security_context.as_ref().and_then(|context| context.capabilities.clone());
    let asked = asked.unwrap_or_default();
    let drops = |name: &str| asked.drop.iter().flatten().any(|dropped| dropped == "ALL" || dropped == name);
    let usual = USUAL_RIGHTS.iter().filter(|name| !drops(name)).map(|name| name.to_string());
    usual.chain(asked.add.clone().unwrap_or_default()).map(|name| format!("CAP_{name}")).collect()
}

/// crun refuses machines that have both versions of cgroups, though it is told to use none: it does not see them.
const WITHOUT_CGROUPS: &str = "mount -t tmpfs tmpfs /sys/fs/cgroup && exec crun \"$@\"";

fn crun(state: &Path) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", WITHOUT_CGROUPS, "crun", "--root"]);
    command.arg(state).arg("--cgroup-manager=disabled");
    command
}

impl Running {
    /// Runs a program inside to its end.
    pub(crate) fn exec(&self, arguments: &[&str], folder: &Path) -> Result<Output> {
        let mut command = crun(&self.state);
        command.arg("exec").arg(&self.name).args(arguments).stdin(Stdio::null());
        Proc::start(&mut command, arguments[0], folder)?.wait(Duration::from_secs(20))
    }

    /// Waits for its end.
    pub(crate) fn end(self, limit: Duration) -> Result<Output> {
        let Running { name, state, process } = self;
        let ended = process.wait(limit);
        let _ = crun(&state).args(["delete", "--force", &name]).output();
        ended
    }

    /// Asks it to end, and says how it did.
    pub(crate) fn stop(self) -> Result<Output> {
        let _ = crun(&self.state).args(["kill", &self.name, "TERM"]).output();
        let name = self.name.clone();
        self.end(Duration::from_secs(5)).map_err(|error| format!("{name}: {error}").into())
    }

    /// Ends it at once.
    pub(crate) fn kill(self) {
        let _ = crun(&self.state).args(["kill", &self.name, "KILL"]).output();
        let _ = self.end(Duration::from_secs(5));
    }
}
