"""The files for Kubernetes and systemd: accepted by their own checkers, and true of the server. And
what the image installs: pinned, with hashes, and what pyproject.toml asks for."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from jetstream_server.node import config
from tests.support.command import jetstream

TREE = Path(__file__).resolve().parent.parent
UNIT = TREE / "ops" / "systemd" / "jetstream.service"
MANIFESTS: list[dict[str, Any]] = list(
    yaml.safe_load_all((TREE / "ops" / "kubernetes" / "jetstream.yaml").read_text())
)


def of_kind(kind: str) -> list[dict[str, Any]]:
    return [each for each in MANIFESTS if each["kind"] == kind]


def manifest(kind: str) -> dict[str, Any]:
    (found,) = of_kind(kind)
    return found


@pytest.mark.parametrize("document", MANIFESTS, ids=lambda each: each["kind"])
def test_kubernetes_accepts_every_manifest_old_and_new(document: dict[str, Any]) -> None:
    """By the schemas of its versions, which know every field."""
    validate = pytest.importorskip("kubernetes_validate")
    versions = ("1.27", "1.31", validate.latest_version())
    for version in versions:
        validate.validate(document, version, strict=True)
    misspelled = {**document, "metadata": {**document["metadata"], "lables": {}}}
    with pytest.raises(validate.ValidationError, match="lables"):
        validate.validate(misspelled, versions[-1], strict=True)


def test_the_manifests_mean_each_other() -> None:
    """What no schema checks: a name that means nothing is accepted, and nothing works."""
    pods = manifest("StatefulSet")["spec"]
    template, (container,) = pods["template"], pods["template"]["spec"]["containers"]
    labels = template["metadata"]["labels"].items()
    services = {each["metadata"]["name"]: each["spec"] for each in of_kind("Service")}
    policies = [each["spec"]["selector"]["matchLabels"] for each in of_kind("PodDisruptionBudget")]
    reach = manifest("NetworkPolicy")["spec"]
    policies.append(reach["podSelector"]["matchLabels"])
    (nodes,) = reach["ingress"][0]["from"]
    policies.append(nodes["podSelector"]["matchLabels"])
    apart = template["spec"]["affinity"]["podAntiAffinity"]
    (rule,) = apart["requiredDuringSchedulingIgnoredDuringExecution"]
    selectors = [
        *(each["selector"] for each in services.values()),
        *policies,
        rule["labelSelector"]["matchLabels"],
        pods["selector"]["matchLabels"],
    ]
    assert all(each and each.items() <= labels for each in selectors)
    assert services[pods["serviceName"]]["clusterIP"] == "None", "its pods have names"
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    for service in services.values():
        assert all(ports[each["name"]] == each["port"] for each in service["ports"])
    reached = [{each["port"] for each in rule["ports"]} for rule in reach["ingress"]]
    assert reached == [{*ports}, {*ports} - {"raft"}, {"http"}], "clients stay away from Raft"
    (clients,) = reach["ingress"][1]["from"]
    ((label, value),) = clients["podSelector"]["matchLabels"].items()
    text = (TREE / "ops" / "kubernetes" / "jetstream.yaml").read_text()
    assert f"--labels={label}={value} " in text, "the file's first lines say how"
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert ports[container[probe]["httpGet"]["port"]] == 9295
    assert template["metadata"]["annotations"]["prometheus.io/port"] == str(ports["http"])
    volumes = [each["name"] for each in template["spec"]["volumes"]]
    volumes += [each["metadata"]["name"] for each in pods["volumeClaimTemplates"]]
    assert sorted(each["name"] for each in container["volumeMounts"]) == sorted(volumes)
    (config_map,) = of_kind("ConfigMap")
    (volume,) = template["spec"]["volumes"]
    assert volume["configMap"]["name"] == config_map["metadata"]["name"]
    (secret,) = [each["valueFrom"]["secretKeyRef"] for each in container["env"]]
    made = f"kubectl create secret generic {secret['name']} --from-literal={secret['key']}="
    assert made in text, "the file's first lines say how"


def test_a_pod_has_the_time_to_drain_and_to_stop() -> None:
    pods = manifest("StatefulSet")["spec"]["template"]["spec"]
    script = pods["containers"][0]["lifecycle"]["preStop"]["exec"]["command"][-1]
    (drain_seconds,) = re.findall(r"--wait --timeout (\d+)", script)
    unit = re.search(r"^TimeoutStopSec=(\d+)", UNIT.read_text(), re.MULTILINE)
    assert unit is not None
    stop_seconds = int(unit[1])
    assert pods["terminationGracePeriodSeconds"] >= int(drain_seconds) + stop_seconds


def test_the_pods_are_the_nodes_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(manifest("ConfigMap")["data"]["cluster.yaml"])
    loaded = config.load(file, environment={"JETSTREAM_CREDENTIAL": "secret" * 4})
    pods = manifest("StatefulSet")
    name, service = pods["metadata"]["name"], pods["spec"]["serviceName"]
    assert [node.host for node in loaded.nodes] == [
        f"{name}-{number}" for number in range(pods["spec"]["replicas"])
    ]
    container = pods["spec"]["template"]["spec"]["containers"][0]
    ports = [each["containerPort"] for each in container["ports"]]
    for node in loaded.nodes:
        for endpoint, port in zip((node.grpc, node.data, node.raft, node.http), ports, strict=True):
            assert endpoint.listen == f"0.0.0.0:{port}"
            assert endpoint.advertise == f"{node.host}.{service}:{port}"
    (data,) = [each for each in container["volumeMounts"] if each["name"] == "data"]
    assert str(loaded.data) == data["mountPath"]


def test_a_pod_drains_before_it_stops_and_takes_the_mark_back() -> None:
    container = manifest("StatefulSet")["spec"]["template"]["spec"]["containers"][0]
    script = container["lifecycle"]["preStop"]["exec"]["command"][-1]
    drain, undo = script.split("; ")
    for command in (drain, undo):
        said = re.sub(r'"\$\{HOSTNAME##\*-\}"', "0", command).split()
        # It is understood: nobody answers there.
        said[said.index("127.0.0.1:9292")] = "127.0.0.1:1"
        assert jetstream(*said[1:]).returncode == 4, said
    assert "--wait" in drain
    assert "--undo" in undo
    number = subprocess.run(
        ["sh", "-c", 'echo "${HOSTNAME##*-}"'],
        env={"HOSTNAME": "jetstream-2"}, capture_output=True, text=True,
    )  # fmt: skip
    assert number.stdout == "2\n"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    text = UNIT.read_text()
    assert "/opt/jetstream/bin/jetstream-server --config " in text
    unit = tmp_path / UNIT.name  # With a program that is there: it is looked for.
    unit.write_text(text.replace("/opt/jetstream/bin/jetstream-server", "/bin/true"))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True
    )
    assert done.returncode == 0, done
    assert UNIT.name not in done.stderr, done.stderr
    broken = tmp_path / "broken.service"
    broken.write_text(unit.read_text().replace("Type=exec", "Typo=exec"))
    refused = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(broken)], capture_output=True, text=True
    )
    assert "Typo" in refused.stderr


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze")
def test_the_unit_may_do_little_else_than_what_a_node_does() -> None:
    """Exposure at most 2.0 of 10."""
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--threshold=20", "--no-pager", UNIT],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    settings = UNIT.read_text().splitlines()
    for setting in ("UMask=0077", "LimitCORE=0", "StateDirectoryMode=0700"):
        assert setting in settings


PYPROJECT = tomllib.loads((TREE / "pyproject.toml").read_text())
PIN = re.compile(
    r"^([a-z0-9-]+)==(\S+)(?: ; [^\n\\]+)?((?: \\\n {4}--hash=sha256:[0-9a-f]{64})+)$", re.MULTILINE
)


def asked_for(extra: str) -> Iterator[Requirement]:
    """What the image needs of pyproject.toml, extras of its own taken apart."""
    project = PYPROJECT["project"]
    for text in (*project["dependencies"], *project["optional-dependencies"][extra]):
        requirement = Requirement(text)
        if requirement.name == project["name"]:
            for each in requirement.extras:
                yield from asked_for(each)
        elif requirement.marker is None or requirement.marker.evaluate():
            yield requirement


@pytest.mark.parametrize("part", ["image/server", "image/build", "wheels"])
def test_what_is_asked_for_is_pinned_with_hashes(part: str) -> None:
    text = (TREE / "ops" / f"{part}.txt").read_text()
    lines = [line for line in text.splitlines() if line and not line.lstrip().startswith("#")]
    pins = {name: version for name, version, _ in PIN.findall(text)}
    assert len(pins) == sum(not line.startswith(" ") for line in lines), "each is pinned"
    assert "://" not in text, "the index is for whoever builds to choose"
    wanted = (
        list(asked_for("server"))
        if part == "image/server"
        else [Requirement(each) for each in PYPROJECT["build-system"]["requires"]]
    )
    if part == "wheels":
        asked = re.search(r"printf '%s\\n' (.*) >>", (TREE / "scripts" / "lock").read_text())
        assert asked is not None
        wanted += map(Requirement, shlex.split(asked[1]))
    missing = [
        str(each)
        for each in wanted
        if not each.specifier.contains(pins.get(canonicalize_name(each.name), "0"))
    ]
    assert not missing, "run scripts/lock --keep"


def test_the_image_takes_nothing_that_is_not_pinned() -> None:
    text = (TREE / "Dockerfile").read_text().replace("\\\n", " ")
    installs = re.findall(r"pip (?:--python \S+ )?(?:install|wheel) [^&\n]*", text)
    assert len(installs) == 4
    for install in installs:
        assert "--no-deps" in install
        assert (
            "--require-hashes" in install
            or "--no-index" in install
            or "--no-build-isolation" in install
        )
