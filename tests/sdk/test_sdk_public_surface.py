"""Every v1 name of this release is importable from its v1 path, with v1's parameters."""

import importlib
import inspect
import subprocess
import sys

import pytest

import runyard

NAMES = """
azureml.core:Workspace Experiment Run ScriptRunConfig Environment RunConfiguration
azureml.core:VERSION __version__
azureml.core.workspace:Workspace
azureml.core.experiment:Experiment
azureml.core.run:Run _OfflineRun get_run RunEnvironmentException
azureml.core.script_run:ScriptRun
azureml.core.script_run_config:ScriptRunConfig get_run_config_from_script_run
azureml.core.runconfig:RunConfiguration MpiConfiguration TensorflowConfiguration
azureml.core.runconfig:PyTorchConfiguration
azureml.core.runconfig:DockerConfiguration CondaDependencies DEFAULT_CPU_IMAGE DEFAULT_GPU_IMAGE
azureml.core.environment:Environment CondaDependencies DEFAULT_CPU_IMAGE DEFAULT_GPU_IMAGE
azureml.core.environment:ImageBuildDetails DockerImageDetails
azureml.core.conda_dependencies:CondaDependencies
azureml.core:ComputeTarget
azureml.core.compute:ComputeTarget AmlCompute AksCompute RemoteCompute DatabricksCompute
azureml.core.compute:ComputeInstance DsvmCompute HDInsightCompute BatchCompute AdlaCompute
azureml.core.compute.amlcompute:AmlCompute AmlComputeStatus ScaleSettings
azureml.core.compute_target:ComputeTargetException
azureml.core.container_registry:ContainerRegistry
azureml.core.authentication:InteractiveLoginAuthentication ServicePrincipalAuthentication
azureml.core.authentication:MsiAuthentication AzureCliAuthentication AbstractAuthentication
azureml.core.authentication:TokenAuthentication ArcTokenAuthentication AzureMLTokenAuthentication
azureml.core:Dataset Datastore
azureml.core:Model model resource_configuration
azureml.core.model:Model
azureml.core.resource_configuration:ResourceConfiguration
azureml.core:Webservice Image webservice image
azureml.core.model:InferenceConfig WebserviceException ModelNotFoundException
azureml.core.webservice:Webservice AciWebservice AksWebservice LocalWebservice
azureml.core.webservice.aci:AciServiceDeploymentConfiguration
azureml.core.webservice.aks:AksServiceDeploymentConfiguration
azureml.core.webservice.local:LocalWebserviceDeploymentConfiguration
azureml.core.webservice.webservice:Webservice WebserviceDeploymentConfiguration
azureml.core.webservice.webservice:WebserviceException
azureml.core.compute.compute:ComputeTargetException
azureml.core.workspace:WorkspaceException
azureml.core.image:Image ContainerImage
azureml.core.image.container:ContainerImage ContainerImageConfig
azureml.core.image.image:Image ImageConfig
azureml.core.dataset:Dataset
azureml.core.datastore:Datastore
azureml.core.runconfig:DataReferenceConfiguration DataPath DataReference SparkPackage
azureml.data:DataType FileDataset TabularDataset OutputFileDatasetConfig DatasetConsumptionConfig
azureml.data:dataset_type_definitions dataset_factory __version__
azureml.data.abstract_dataset:AbstractDataset
azureml.data.abstract_datastore:AbstractDatastore
azureml.data.azure_storage_datastore:AzureBlobDatastore AzureFileDatastore
azureml.data.azure_storage_datastore:AbstractAzureStorageDatastore
azureml.data.azure_data_lake_datastore:AzureDataLakeGen2Datastore AzureDataLakeDatastore
azureml.data.dataset_error_handling:DatasetValidationError DatasetExecutionError
azureml.data.context_managers:MountContext
azureml.data.data_reference:DataReference
azureml.data.datapath:DataPath DataPathComputeBinding
azureml.data.dataset_consumption_config:DatasetConsumptionConfig
azureml.data.dataset_factory:TabularDatasetFactory FileDatasetFactory DataType
azureml.data.dataset_type_definitions:PromoteHeadersBehavior FileEncoding
azureml.data.file_dataset:FileDataset
azureml.data.output_dataset_config:OutputFileDatasetConfig
azureml.data.tabular_dataset:TabularDataset
azureml.telemetry:set_diagnostics_collection
azureml.train.dnn:TensorFlow PyTorch Chainer Mpi ParameterServer Gloo Nccl
azureml.train.estimator:Estimator MMLBaseEstimator Mpi
azureml.train.sklearn:SKLearn
azureml._restclient.snapshots_client:SNAPSHOT_MAX_SIZE_BYTES
azureml._restclient.exceptions:ServiceException
azureml._common.exceptions:AzureMLException
azureml.exceptions:AzureMLException ActivityFailedException AuthenticationException
azureml.exceptions:ComputeTargetException DatasetTimestampMissingError ServiceException
azureml.exceptions:DiscoveryUrlNotFoundException ExperimentExecutionException UserErrorException
azureml.exceptions:ModelNotFoundException ModelPathNotFoundException ProjectSystemException
azureml.exceptions:RunConfigurationException RunEnvironmentException SnapshotException
azureml.exceptions:TrainingException WebserviceException WorkspaceException ParallelRunException
"""

SIGNATURES = {
    "Workspace": "subscription_id resource_group workspace_name auth=None _location=None "
    "_disable_service_check=False _workspace_id=None sku='basic' tags=None _cloud='AzureCloud'",
    "Workspace.from_config": "path=None auth=None _logger=None _file_name=None",
    "Workspace.write_config": "self path=None file_name=None",
    "Workspace.get_details": "self",
    "Workspace.get_run": "self run_id",
    "AmlCompute.provisioning_configuration": "vm_size='' vm_priority='dedicated' min_nodes=0 "
    "max_nodes=None idle_seconds_before_scaledown=1800 admin_username=None "
    "admin_user_password=None admin_user_ssh_key=None vnet_resourcegroup_name=None "
    "vnet_name=None subnet_name=None tags=None description=None "
    "remote_login_port_public_access='NotSpecified' identity_type=None identity_id=None "
    "location=None enable_node_public_ip=True",
    "AmlCompute.wait_for_completion": "self show_output=False min_node_count=None "
    "timeout_in_minutes=25 is_delete_operation=False",
    "AmlCompute.update": "self min_nodes=None max_nodes=None idle_seconds_before_scaledown=None",
    "AmlCompute.get_active_runs": "self type=None tags=None properties=None status=None",
    "AmlCompute.supported_vmsizes": "workspace location=None",
    "ComputeTarget.create": "workspace name provisioning_configuration",
    "ComputeTarget.attach": "workspace name attach_configuration",
    "Experiment": "workspace name _skip_name_validation=False _create_in_cloud=True **kwargs",
    "Experiment.submit": "self config tags=None **kwargs",
    "Experiment.start_logging": "self *args outputs=None snapshot_directory=None "
    "display_name=None **kwargs",
    "Experiment.get_runs": "self type=None tags=None properties=None include_children=False",
    "ScriptRunConfig": "source_directory=None script=None arguments=None run_config=None "
    "_telemetry_values=None compute_target=None environment=None distributed_job_config=None "
    # The last one is ours: a step beyond v1.
    "resume_from=None max_run_duration_seconds=2592000 command=None docker_runtime_config=None "
    "max_restarts=None",
    "Environment.get": "workspace name version=None label=None",
    "Environment.list": "workspace",
    "Environment.register": "self workspace",
    "Environment.build": "self workspace image_build_compute=None",
    "Environment.build_local": "self workspace platform=None **kwargs",
    "Environment.get_image_details": "self workspace",
    "Environment.label": "workspace environment_name environment_version labels",
    "MpiConfiguration": "process_count_per_node=1 node_count=1",
    "TensorflowConfiguration": "worker_count=1 parameter_server_count=1",
    "PyTorchConfiguration": "communication_backend='Nccl' process_count=None node_count=1",
    "Datastore": "workspace name=None",
    "Datastore.get": "workspace datastore_name",
    "Datastore.upload": "self src_dir target_path=None overwrite=False show_progress=True",
    "Datastore.upload_files": "self files relative_root=None target_path=None overwrite=False "
    "show_progress=True",
    "Datastore.download": "self target_path prefix=None overwrite=False show_progress=True",
    "Datastore.path": "self path=None data_reference_name=None",
    "Datastore.as_mount": "self",
    "Datastore.register_azure_file_share": "workspace datastore_name file_share_name account_name "
    "sas_token=None account_key=None protocol=None endpoint=None overwrite=False "
    "create_if_not_exists=False skip_validation=False",
    "Dataset.File.from_files": "path validate=True partition_format=None is_file=False",
    "Dataset.File.upload_directory": "src_dir target pattern=None overwrite=False "
    "show_progress=True",
    "Dataset.Tabular.from_delimited_files": "path validate=True include_path=False "
    "infer_column_types=True set_column_types=None separator=',' header=True "
    "partition_format=None support_multi_line=False empty_as_string=False encoding='utf8'",
    "Dataset.Tabular.from_parquet_files": "path validate=True include_path=False "
    "set_column_types=None partition_format=None",
    "Dataset.Tabular.from_json_lines_files": "path validate=True include_path=False "
    "set_column_types=None partition_format=None invalid_lines='error' encoding='utf8'",
    "Dataset.Tabular.register_pandas_dataframe": "dataframe target name description=None tags=None "
    "show_progress=True row_group_size=None make_target_path_unique=True",
    "Dataset.get_by_name": "workspace name version='latest'",
    "Dataset.get_by_id": "workspace id",
    "DataReference": "datastore data_reference_name=None path_on_datastore=None mode='mount' "
    "path_on_compute=None overwrite=False",
    "DataPath": "datastore=None path_on_datastore=None name=None",
    "DatasetConsumptionConfig": "name dataset mode='direct' path_on_compute=None",
    "OutputFileDatasetConfig": "name=None destination=None source=None partition_format=None",
    "OutputFileDatasetConfig.as_upload": "self overwrite=False source_globs=None",
    "OutputFileDatasetConfig.register_on_complete": "self name description=None tags=None",
    "Model": "workspace name=None id=None tags=None properties=None version=None run_id=None "
    "model_framework=None expand=True **kwargs",
    "Model.register": "workspace model_path model_name tags=None properties=None description=None "
    "datasets=None model_framework=None model_framework_version=None child_paths=None "
    "sample_input_dataset=None sample_output_dataset=None resource_configuration=None",
    "Model.list": "workspace name=None tags=None properties=None run_id=None latest=False "
    "dataset_id=None expand=True page_count=255 model_framework=None",
    "Model.get_model_path": "model_name version=None _workspace=None",
    "Model.download": "self target_dir='.' exist_ok=False exists_ok=None",
    "Model.update": "self tags=None description=None sample_input_dataset=None "
    "sample_output_dataset=None resource_configuration=None",
    "Model.update_tags_properties": "self add_tags=None remove_tags=None add_properties=None",
    "Model.add_dataset_references": "self datasets",
    "Model.deserialize": "workspace model_payload",
    "Model.delete": "self",
    "ResourceConfiguration": "cpu=None memory_in_gb=None gpu=None",
    "Model.deploy": "workspace name models inference_config=None deployment_config=None "
    "deployment_target=None overwrite=False show_output=False",
    "InferenceConfig": "entry_script runtime=None conda_file=None extra_docker_file_steps=None "
    "source_directory=None enable_gpu=None description=None base_image=None "
    "base_image_registry=None cuda_version=None environment=None",
    "AciWebservice.deploy_configuration": "cpu_cores=None memory_gb=None tags=None "
    "properties=None description=None location=None auth_enabled=None ssl_enabled=None "
    "enable_app_insights=None ssl_cert_pem_file=None ssl_key_pem_file=None ssl_cname=None "
    "dns_name_label=None primary_key=None secondary_key=None collect_model_data=None "
    "cmk_vault_base_url=None cmk_key_name=None cmk_key_version=None vnet_name=None "
    "subnet_name=None",
    "AksWebservice.deploy_configuration": "autoscale_enabled=None autoscale_min_replicas=None "
    "autoscale_max_replicas=None autoscale_refresh_seconds=None "
    "autoscale_target_utilization=None collect_model_data=None auth_enabled=None cpu_cores=None "
    "memory_gb=None enable_app_insights=None scoring_timeout_ms=None "
    "replica_max_concurrent_requests=None max_request_wait_time=None num_replicas=None "
    "primary_key=None secondary_key=None tags=None properties=None description=None "
    "gpu_cores=None period_seconds=None initial_delay_seconds=None timeout_seconds=None "
    "success_threshold=None failure_threshold=None namespace=None token_auth_enabled=None "
    "compute_target_name=None cpu_cores_limit=None memory_gb_limit=None blobfuse_enabled=None",
    "LocalWebservice.deploy_configuration": "port=None",
    "Webservice": "workspace name",
    "Webservice.wait_for_deployment": "self show_output=False timeout_sec=None",
    "Webservice.run": "self input_data",
    "Webservice.get_logs": "self num_lines=5000 init=False",
    "Webservice.regen_key": "self key set_key=None",
    "Webservice.deploy_from_image": "workspace name image deployment_config=None "
    "deployment_target=None overwrite=False",
    "Webservice.deploy_from_model": "workspace name models image_config deployment_config=None "
    "deployment_target=None overwrite=False",
    "LocalWebservice.reload": "self wait=False",
    "LocalWebservice.delete": "self delete_cache=True delete_image=False delete_volume=True",
    "Run": "experiment run_id outputs=None **kwargs",
    "Run.get": "workspace run_id",
    "Run.get_context": "allow_offline=True used_for_context_manager=False **kwargs",
    "Run.wait_for_completion": "self show_output=False wait_post_processing=False "
    "raise_on_error=True",
    "Run.get_metrics": "self name=None recursive=False run_type=None populate=False",
    "Run.get_file_names": "self",
    "Run.download_file": "self name output_file_path=None _validate_checksum=False",
    "Run.download_files": "self prefix=None output_directory=None output_paths=None "
    "batch_size=100 append_prefix=True timeout_seconds=None",
    "Run.upload_file": "self name path_or_stream datastore_name=None",
    "Run.get_all_logs": "self destination=None",
    "Run.restore_snapshot": "self snapshot_id=None path=None",
    "Run.log": "self name value description='' step=None",
    "Run.log_list": "self name value description=''",
    "Run.log_row": "self name description=None **kwargs",
    "Run.log_table": "self name value description=''",
    "Run.log_image": "self name path=None plot=None description=''",
    "Run.log_confusion_matrix": "self name value description=''",
    "Run.log_accuracy_table": "self name value description=''",
    "Run.log_residuals": "self name value description=''",
    "Run.log_predictions": "self name value description=''",
    "Run.tag": "self key value=None",
    "Run.child_run": "self name=None run_id=None outputs=None",
    "Run.create_children": "self count=None tag_key=None tag_values=None",
    "Run.submit_child": "self config tags=None **kwargs",
    "Run.flush": "self timeout_seconds=300",
    "Run.register_model": "self model_name model_path=None tags=None properties=None "
    "model_framework=None model_framework_version=None description=None datasets=None "
    "sample_input_dataset=None sample_output_dataset=None resource_configuration=None **kwargs",
}


@pytest.mark.parametrize("line", NAMES.split("\n")[1:-1])
def test_v1_names_are_importable(line: str) -> None:
    module, _, names = line.partition(":")
    loaded = importlib.import_module(module)
    missing = [name for name in names.split() if not hasattr(loaded, name)]
    assert not missing


@pytest.mark.parametrize("name", SIGNATURES)
def test_parameters_are_v1s(name: str) -> None:
    owner, *names = name.split(".")
    thing = getattr(runyard, owner)
    for method in names:
        thing = getattr(thing, method)
    shown = [_word(one) for one in inspect.signature(thing).parameters.values()]
    assert shown == SIGNATURES[name].split()


def _word(parameter: inspect.Parameter) -> str:
    stars: dict[object, str] = {
        inspect.Parameter.VAR_POSITIONAL: "*",
        inspect.Parameter.VAR_KEYWORD: "**",
    }
    name = stars.get(parameter.kind, "") + parameter.name
    default = parameter.default
    return name if default is inspect.Parameter.empty else f"{name}={default!r}"


def test_both_paths_give_the_same_classes() -> None:
    import azureml.core
    import azureml.core.compute_target
    import azureml.exceptions
    from azureml.core.runconfig import CondaDependencies

    assert azureml.core.Run is runyard.Run
    assert importlib.import_module("azureml.core.run").Run is runyard.Run
    assert getattr(azureml.core, "run").Run is runyard.Run  # noqa: B009
    assert CondaDependencies is runyard.CondaDependencies
    assert (
        azureml.core.compute_target.ComputeTargetException
        is azureml.exceptions.ComputeTargetException
    )


def test_all_public_names_are_there() -> None:
    assert all(getattr(runyard, name) is not None for name in runyard.__all__)
    with pytest.raises(AttributeError, match="'runyard' has no attribute 'Rum'"):
        runyard.Rum  # noqa: B018


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("from azureml.data.dbfs_datastore import DBFSDatastore", "not in this release"),
        ("from azureml import tensorboard", "TensorBoard"),
        ("from azureml.core.webservice import AksEndpoint", "this part of model deployment"),
        ("from azureml.core.profile import ModelProfile", "model profiling"),
        ("import azureml.train.hyperdrive", "sweeps"),
        ("from azureml.pipeline.steps import PythonScriptStep", "pipelines"),
        ("from azureml.data import HDFSOutputDatasetConfig", "not in this release"),
        ("from azureml.train.automl import AutoMLConfig", "not supported"),
        ("from azureml.opendatasets import MNIST", "not supported"),
        ("from azureml.core.runconfig import JarLibrary", "Spark"),
        ("import azureml.mlflow", "MLflow protocol"),
        (
            "from azureml._base_sdk_common.common import normalize_windows_paths",
            "azureml.exceptions",
        ),
        ("import azureml.fairness", "not supported"),
    ],
)
def test_what_is_not_here_says_so_in_words(statement: str, words: str) -> None:
    with pytest.raises(ImportError, match=words):
        exec(statement)


def test_names_v1_never_had_are_ordinary_errors() -> None:
    with pytest.raises(ImportError, match="cannot import name 'Wrokspace'"):
        exec("from azureml.core import Wrokspace")
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'azureml\.nonsense'"):
        exec("import azureml.nonsense")


def test_importing_the_core_is_light_and_loads_urllib_request() -> None:
    code = (
        "import sys, azureml.core, urllib; urllib.request.urlretrieve; print(azureml.core.VERSION);"
        "heavy = {'urllib3', 'pathspec', 'yaml', 'numpy', 'sqlalchemy', 'starlette', 'asyncio',"
        "'runyard.sdk.client'} & set(sys.modules); assert not heavy, heavy;"
        "from azureml.core import Workspace, Experiment, ScriptRunConfig, Environment, Run;"
        "heavy = {'urllib3', 'pathspec', 'yaml'} & set(sys.modules); assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(".") == 2


def test_importing_the_core_brings_data_and_exceptions_as_in_v1() -> None:
    code = "import azureml.core; azureml.data.FileDataset; azureml.exceptions.UserErrorException"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_another_distribution_may_add_to_the_namespace(tmp_path: object) -> None:
    from pathlib import Path

    package = Path(str(tmp_path), "azureml", "tensorboard")
    package.mkdir(parents=True)
    (package.parent / "__init__.py").write_text(
        "__path__ = __import__('pkgutil').extend_path(__path__, __name__)\n"
    )
    (package / "__init__.py").write_text("Tensorboard = 'theirs'\n")
    code = "import azureml.core; from azureml.tensorboard import Tensorboard; print(Tensorboard)"
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.append({str(tmp_path)!r}); {code}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "theirs\n", done.stderr
