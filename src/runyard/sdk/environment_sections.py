"""The sections of an environment: python, docker, spark, databricks, r. Plain data, closed."""

from typing import TYPE_CHECKING

from runyard.sdk.element import closed

if TYPE_CHECKING:
    from runyard.sdk.conda_dependencies import CondaDependencies

DEFAULT_CPU_IMAGE = "mcr.microsoft.com/azureml/openmpi4.1.0-ubuntu22.04"
DEFAULT_GPU_IMAGE = "mcr.microsoft.com/azureml/openmpi4.1.0-cuda11.8-cudnn8-ubuntu22.04"
MPI_CPU_IMAGE = DEFAULT_CPU_IMAGE
MPI_GPU_IMAGE = DEFAULT_GPU_IMAGE


@closed
class PythonSection:
    """Which Python and which packages."""

    user_managed_dependencies: bool
    interpreter_path: str
    conda_dependencies_file: str | None
    base_conda_environment: str | None
    _conda_dependencies: "CondaDependencies | None"

    def __init__(self) -> None:
        self.user_managed_dependencies = False
        self.interpreter_path = "python"
        self.conda_dependencies_file = None
        self.base_conda_environment = None
        self._conda_dependencies = None

    @property
    def conda_dependencies(self) -> "CondaDependencies":
        """The packages; v1's default ones until they are set."""
        from runyard.sdk.conda_dependencies import CondaDependencies

        if self._conda_dependencies is None:
            self._conda_dependencies = CondaDependencies()
        return self._conda_dependencies

    @conda_dependencies.setter
    def conda_dependencies(self, value: "CondaDependencies | None") -> None:
        from runyard.sdk.conda_dependencies import CondaDependencies

        if value is not None and not isinstance(value, CondaDependencies):
            raise TypeError(f"conda_dependencies must be CondaDependencies, not {type(value)}")
        self._conda_dependencies = value


@closed
class ContainerRegistry:
    """Where a base image comes from."""

    address: str | None
    username: str | None
    password: str | None
    registry_identity: object

    def __init__(self) -> None:
        self.address = None
        self.username = None
        self.password = None
        self.registry_identity = None


@closed
class DockerImagePlatform:
    """What an image is made for."""

    os: str
    architecture: str

    def __init__(self, os: str = "Linux", architecture: str = "amd64") -> None:
        self.os = os
        self.architecture = architecture


@closed
class DockerSection:
    """Which container. At most one of base image, Dockerfile and build context may be set."""

    enabled: bool
    base_image: str | None
    base_dockerfile: str | None
    build_context: object
    base_image_registry: ContainerRegistry
    platform: DockerImagePlatform
    shared_volumes: bool
    gpu_support: bool
    shm_size: str | None
    arguments: list[str]

    def __init__(self) -> None:
        self.enabled = False
        self.base_image = DEFAULT_CPU_IMAGE
        self.base_dockerfile = None
        self.build_context = None
        self.base_image_registry = ContainerRegistry()
        self.platform = DockerImagePlatform()
        self.shared_volumes = True
        self.gpu_support = False
        self.shm_size = None
        self.arguments = []


@closed
class SparkPackage:
    """One package of a Spark environment."""

    group: str | None
    artifact: str | None
    version: str | None

    def __init__(
        self, group: str | None = None, artifact: str | None = None, version: str | None = None
    ) -> None:
        self.group = group
        self.artifact = artifact
        self.version = version


@closed
class SparkSection:
    """Spark's packages; kept, not used."""

    repositories: list[str]
    packages: list[SparkPackage]
    precache_packages: bool

    def __init__(self) -> None:
        self.repositories = []
        self.packages = []
        self.precache_packages = True


@closed
class DatabricksSection:
    """Databricks' libraries; kept, not used."""

    maven_libraries: list[object]
    pypi_libraries: list[object]
    rcran_libraries: list[object]
    jar_libraries: list[object]
    egg_libraries: list[object]

    def __init__(self) -> None:
        self.maven_libraries = []
        self.pypi_libraries = []
        self.rcran_libraries = []
        self.jar_libraries = []
        self.egg_libraries = []


@closed
class RSection:
    """R's version and packages; kept, not used."""

    r_version: str | None
    user_managed: bool
    rscript_path: str | None
    snapshot_date: str | None
    cran_packages: list[object]
    github_packages: list[object]
    custom_url_packages: list[str]
    bioconductor_packages: list[str]

    def __init__(self) -> None:
        self.r_version = None
        self.user_managed = False
        self.rscript_path = None
        self.snapshot_date = None
        self.cran_packages = []
        self.github_packages = []
        self.custom_url_packages = []
        self.bioconductor_packages = []
