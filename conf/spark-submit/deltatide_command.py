r"""The ``deltatide`` command for spark-submit, which takes a file: master, Delta and S3 are the platform's.

``pip install deltatide`` on the driver, without extras, is enough. A merge on any cluster:

    spark-submit --master spark://host:7077 \
        --packages io.delta:delta-spark_4.1_2.13:4.4.0 \
        --conf spark.sql.extensions=io.delta.sql.DeltaSparkSessionExtension \
        --conf spark.sql.catalog.spark_catalog=org.apache.spark.sql.delta.catalog.DeltaCatalog \
        deltatide_command.py merge -c /etc/deltatide/shop.toml

On EMR, as a step of a cluster that runs Spark (in client mode, with this file and the configuration on the
primary node): conf/spark-submit/emr-step.json.
"""

from connector.cli import main

main()
